"""Writer of records with former names of settings, made at commit d806d0d. Their numbers must stay readable.

    python -m tests.orchestrator.fixtures_0_2.make_fixtures FOLDER

Check out that commit to run it, since a later one writes the new names. FOLDER must not exist.
`records.zip` then holds a runs folder with a sweep (two trials, a confirmation, a rerun of two seeds) and a single run,
the description of an exported model, and the CSV of the stream's table. Videos, frames, weights and logs are omitted,
except for the commits of the single run. FOLDER is replaced by PLACE, so that no path of the author's machine is
stored.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.small_stream import write_stream

HERE = Path(__file__).resolve().parent
PLACE = "/home/user/records"  # padded to the length of FOLDER: a database keeps its offsets
SETTINGS = "optim.schedule=cosine_to_end optim.last_lr=0.01 data.load_threads=1 optim.epochs=1"
SWEEP = "--name old --trials 2 --confirm 1 --seeds 2 --baselines zero_shot --scheduler none --local-cpus 2"
COMMANDS = (
    f"sweep --method prompt --stream small/small.json {SWEEP} --space optim.lr_scale=20,50 {SETTINGS}",
    f"run --method prompt --stream small/small.json {SETTINGS} seed=7",
    "export hf --model prompt model",
    "table --stream small",
)
KEPT = ("model/model.json", "runs/mlflow.db", "runs/tables/small/small.csv")
KEPT_NAMES = ("plan.json", "config.json", "ranks.json", "model.json")


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    write_stream(folder / "small", num_tasks=2)
    for command in COMMANDS:
        subprocess.run([sys.executable, "-m", "orchestrator", *command.split()], cwd=folder, check=True)
    pack(folder)


def pack(folder: Path) -> None:
    place = PLACE.ljust(len(str(folder)), "_")
    assert len(place) == len(str(folder)), f"{folder}: choose a path of at least {len(PLACE)} characters"
    with zipfile.ZipFile(HERE / "records.zip", "w", zipfile.ZIP_LZMA) as file:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            is_kept = name in KEPT or (path.name in KEPT_NAMES and name.startswith(("runs/artifacts/", "runs/sweeps/")))
            if path.is_file() and (is_kept or ("/store/" in name and _of_single_run(name, folder))):
                file.writestr(name, path.read_bytes().replace(str(folder).encode(), place.encode()))


def _of_single_run(name: str, folder: Path) -> bool:
    """Return whether a file of the store is a commit, gallery or weights of the exported model's run."""
    kind, key = name.split("/")[2:4]
    newest = max((folder / "runs/store/weights").iterdir(), key=lambda path: path.stat().st_mtime)
    return kind in ("commits", "weights", "gallery") and key == newest.name


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
