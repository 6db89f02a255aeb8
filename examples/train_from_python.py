"""Trains a small GPT-2 from Python, kills a node on the way, and compares with one process training alone.

Run it with `python examples/train_from_python.py`.
"""

from pathlib import Path

import planaria


def main() -> None:
    job = planaria.load_job(Path(__file__).with_name("demo.toml"), ["train.steps=10"])
    trained = planaria.train(job, name="from-python", faults=["kill:node=2,step=5,at=backward"])
    for recovery in trained.recoveries:
        print(f"step {recovery.step}: {recovery.microbatches_rerun} microbatches run again, {recovery.reason}")
    alone = planaria.reference(job, name="from-python-alone")
    print(f"loss {trained.final_loss}; same bits: {trained.weights_sha256 == alone.weights_sha256}")


if __name__ == "__main__":
    main()
