"""Hours of training in virtual time (`macro`), traces of nodes that come and go, scripts, and what they come to."""
