"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into text and exit codes.

    main, options: the commands, and what several have · live_commands, live: a run that is under way
    planning/: `plan` and `profile` · rehearsal/: `drill` and `compare`
    simulate, simulation_view, trace, host_commands

A new command is a function with a line in `main`.
"""
