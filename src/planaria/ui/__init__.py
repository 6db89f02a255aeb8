"""What people see and type: the command line, pictures, pages. Nothing below imports it.

cli/  the command `planaria` · plots/: pictures (matplotlib is an extra) · dashboard/: the page in a browser
report/: the same in one file · start/: the first hour
"""
