"""Messages and state between workers.

transport, frames  one connection for each direction of a pair · mailbox: where what came is put down
sync               sums of gradients between owners · state_transfer: replicas on their way
"""
