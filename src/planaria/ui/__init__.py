"""What people see and type: the command line and pictures. Nothing below imports it.

cli/  the command `planaria` · plots/: pictures (matplotlib is an extra) · start/: the first hour
"""
