"""Two examples of each command, at the end of its help."""

from __future__ import annotations

import argparse

EXAMPLES = {
    "demo": ("", "--open"),
    "run": ("clip4clip shapes-5", "framefusion_moe shapes-10 --preset released method.beta=0.4 optim.epochs=2"),
    "sweep": ("structalign shapes-5 --trials 12 --space method.lambda1=0.05,0.1", "--resume NAME"),
    "reproduce": ("--list", "tempme/table2 --stream shapes-5"),
    "rerun": ("NAME --seeds 5", "NAME --top 2 --baselines zero_shot,clip4clip"),
    "table": ("shapes-5 --figures", "NAME --direction both"),
    "runs": ("--stream shapes-5", "--all"),
    "runs show": ("clip4clip", "7619a965"),
    "runs rm": ("7619a965", "7619a965 --commits --yes"),
    "runs explain": ("7619a965", "shapes-5 clip4clip R@1"),
    "runs sync": ("", "--rebuild"),
    "runs publish": ("shapes-5", "7619a965 --captions --sign ~/.ssh/id_ed25519"),
    "runs verify": ("FILE", "FILE --queries 0 --signers allowed_signers"),
    "runs compare": ("clip4clip zero_shot", "FILE:clip4clip theirs.csv"),
    "runs attach": ("", "--stop"),
    "search": (
        '"a large orange cell splits" --model best-shapes-5',
        '"a dog" "two cats" --model NAME --gallery ~/videos',
    ),
    "serve": ("--model best-shapes-5", "--model NAME --gallery ~/videos --port 8080"),
    "plot": ("attention framefusion_moe", "drift clip4clip --out drift.pdf"),
    "migrate": ("old.npz new.npz", "old.npz new.npz --queries queries.npy --rate 50"),
    "report": ("shapes-5 --figures slides", "NAME --html report.html"),
    "export": ("hf FOLDER --model best-shapes-5", "hf FOLDER --model NAME --license mit"),
    "export hf": ("FOLDER --model best-shapes-5", "FOLDER --model NAME --license mit"),
    "streams": ("", "check shapes-5"),
    "streams check": ("shapes-5", "NAME --features FOLDER"),
    "streams canaries": ("FOLDER", "~/canaries"),
    "streams import": (
        "csv table=my.csv tasks=month --videos ~/videos",
        "features table=my.csv features=videos.npz --name mine",
    ),
    "streams export": ("shapes-5 FOLDER --features", "shapes-5 FOLDER --frames --form h5"),
    "streams export-script": ("open-clip", "open-clip --out embed.py"),
    "streams frames": ("clip.mp4 --out clip.png", "~/videos"),
    "cache": ("", "--store s3://bucket/prefix"),
    "cache build": ("shapes-5", "shapes-5 --cluster --features method=zero_shot"),
    "cache verify": ("", "--yes"),
    "cache weights": ("ViT-B-32-quickgelu", "ViT-B-16 laion2b_s34b_b88k --out weights"),
    "cache gc": ("--older-than 30", "--losers NAME --yes"),
    "methods": ("clip4clip", "check clip4clip"),
    "methods show": ("lora --preset released", "framefusion_moe --json"),
    "methods new": ("my_idea", "my_idea --strategy --into ~/methods"),
    "methods check": ("lwf method.base=xpool", "my_idea:MyIdea"),
    "ui": ("", "--port 5001 --open"),
    "doctor": ("--stream shapes-5", "--gpu"),
}


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Add the examples to the help of all commands and actions of a parser."""
    for action in parser._actions:
        for choice in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            examples = EXAMPLES.get(choice.prog.removeprefix("ctvr "), ())
            lines = [f"  {choice.prog} {words}".rstrip() for words in examples]
            choice.epilog = "\n".join(["examples:", *lines]) if lines else None
            choice.formatter_class = _Help
            add_examples(choice)


class _Help(argparse.HelpFormatter):
    """Formatter that keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:\n") else super()._fill_text(text, width, indent)
