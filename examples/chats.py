"""Writes small chats about sums, a row of JSON for each: some data of the kind that people fine-tune on.

python examples/chats.py FILE
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

SYSTEM = {"role": "system", "content": "You add up."}


def write(path: Path, num_chats: int = 2000) -> None:
    """Writes a file of chats of one to three questions each, in the column "messages"."""
    chance = random.Random(0)
    with path.open("w") as file:
        for _ in range(num_chats):
            messages = [SYSTEM] if chance.random() < 0.5 else []
            for _ in range(chance.randint(1, 3)):
                one, other = chance.randrange(10), chance.randrange(10)
                messages.append({"role": "user", "content": f"{one}+{other}?"})
                messages.append({"role": "assistant", "content": str(one + other)})
            file.write(json.dumps({"messages": messages}) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
