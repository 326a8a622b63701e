"""Section 6.1: image captions, English to German, with the command line alone.

    TRANSFORMER_DATA=FOLDER python book/experiments/multi30k.py

Multi30k is used from that folder if it is there, and downloaded if it is not. About an hour on one core.
"""

from real_text import run
from recording import record

PREPARE = ["--corpus", "multi30k", "--vocab-size", "5000"]

if __name__ == "__main__":
    arguments = {"name": "multi30k", "prepare": PREPARE, "configuration": "book/experiments/multi30k.json", "seed": 0}
    record(__file__, {"multi30k, seed 0": arguments}, run)
