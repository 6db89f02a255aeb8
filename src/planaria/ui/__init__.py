"""What people see and type: the command line and pictures. Nothing below imports it.

cli/  the command `planaria` · plots/: pictures (matplotlib is an extra) · dashboard/: the page in a browser
start/: the first hour
"""
