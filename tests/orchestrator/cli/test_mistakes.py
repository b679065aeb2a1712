"""The wording of refusals: a mistaken command is one line, which leads to the command that works."""

import pytest

from tests.orchestrator.cli.test_main import _logging_as_before, ctvr  # noqa: F401

SWEEP = "sweep clip4clip shapes-5"
MISTAKES = [
    (["streams", "export", "shapes-5", "o", "--license", "mit"], "--license: has no effect without --hf. Add --hf,"),
    (
        ["cache", "build", "--workers", "3"],
        "--workers: has no effect on ctvr cache build. Omit it. Run: ctvr cache build",
    ),
    (["doctor", "--gpu", "--stream=shapes-5"], "--stream: has no effect with --gpu. Omit one of them."),
    (["sweep", "--seeds", "0", "--top", "2"], "--top: has no effect with --seeds 0. Omit one of them."),
    (
        ["cache", "build", "--features", "--gpus-per-trial", "1"],
        "--gpus-per-trial: has no effect without --cluster or --address.",
    ),
    (["table", "shapes-5", "--columns", ","], "--columns: is empty or repeats a name (got ','). Use each"),
    (["table", "shapes-5", "--columns", "a,b,a"], "--columns: is empty or repeats a name (got 'a,b,a')."),
    (["sweep", "--baselines", "clip4clpi"], "--baselines: no method called 'clip4clpi'. Did you mean clip4clip?"),
    (
        ["run", "clip4clip", "shapes-5", "optim.momentum=0.9"],
        "optim.momentum: is not read by optim.name=adamw. Omit it",
    ),
    (
        ["run", "clip4clip", "shapes-5", "backbone=ViT-B-32"],
        "is the group of the settings name, weights, sha256, vocabulary, activation, mean, resize_mode. Run: ctvr run "
        "clip4clip shapes-5 backbone.name=ViT-B-32",
    ),
    (
        ["run", "clip4clip", "shapes-5", "optim.epochs=2", "optim.Epochs=3"],
        "no such setting, and optim.epochs, probably meant, is also given ('2' and '3'). Keep one of them.",
    ),
    (
        ["run", "clip4clip", "shapes-5", "epochs=2", "optim.epochs=2"],
        "Keep one of them. Run: ctvr run clip4clip shapes-5 optim.epochs=2",
    ),
    (
        ["run", "clip4clip", "shapes-5", "backbone.name=openai/clip-vit-base-patch32"],
        "Run: ctvr run clip4clip shapes-5 backbone.name=ViT-B-32-quickgelu",
    ),
    (
        ["sweep", "clip4clip", "shapes-5", "backbone.name=vit_b_32"],
        "Run: ctvr sweep clip4clip shapes-5 backbone.name=ViT-B-32",
    ),
    (["run", "clip4clip:paper", "shapes-5"], "a row of a table. Run: ctvr run clip4clip --preset paper shapes-5"),
    (["run", ":Shift", "shapes-5"], "no method called ':Shift'. A class in a file is written MODULE:CLASS. All: `ctvr"),
    (
        ["run", "notmethod:", "shapes-5"],
        "no method called 'notmethod:'. A class in a file is written MODULE:CLASS. All",
    ),
    (
        ["run", "clip4clip:", "shapes-5"],
        "Did you mean clip4clip? All: `ctvr methods`. Run: ctvr run clip4clip shapes-5",
    ),
    (
        ["run", "clip4clip", "shapes-5", "--gpus", "2"],
        "CUDA_VISIBLE_DEVICES chooses it. Omit it. Run: ctvr run clip4",
    ),
    (
        ["run", "clip4clip", "shapes-5", "--output_dir", "o"],
        "no such option. Run: ctvr run clip4clip shapes-5 --runs o",
    ),
    (
        ["run", "clip4clip", "shapes-5", "--learning_rate=1"],
        "not an option. Run: ctvr run clip4clip shapes-5 method.lr=1",
    ),
    (["run", "clip4clip", "shapes-5", "--fp16"], "not an option. Run: ctvr run clip4clip shapes-5 precision=bf16"),
    (["cache", "--store", "."], "--store .: is not a store. Pass the store of earlier runs."),
    (
        ["run", "clip4clip", "tiny.yaml"],
        "stream: tiny.yaml is not a manifest. If it is a file of settings, use --config",
    ),
    (["cache", "gc", "--older-than", "nan"], "is not a number of days (got 'nan'). Use --older-than 30."),
    (["cache", "gc", "--older-than", "3", "--losers", "x"], "--losers: cannot be combined with --older-than. Omit one"),
    (["ui", "5001"], "'5001': is a port. Run: ctvr ui --port 5001"),
    (["ui", "--port=5001", "5002"], "'5002': is one argument too many. Omit it. Run: ctvr ui --port=5001"),
    (["report", "mine", "mine.html"], "'mine.html': is a page. Run: ctvr report mine --html mine.html"),
    (["search", "a red box", "clip4clip"], "Run: ctvr search 'a red box' --model clip4clip"),
    (["search", "red", "--model", "x", "--top-k", "5"], "no such option. Run: ctvr search red --model x -k 5"),
    (["--runs", "other", "table", "shapes-5"], "must come after the command. Run: ctvr table shapes-5 --runs other"),
    (["help", "swep"], "swep: no such command. Run: ctvr sweep --help"),
    (["compare", "A", "B"], "compare: no such command. Run: ctvr runs compare A B"),
    (["table", "shapes-5", "--latex"], "is always written as .tex, too. Omit it. Run: ctvr table shapes-5"),
    (["run", "clip4clip", "shapes-5", "-c", "x.yaml"], "Run: ctvr run clip4clip shapes-5 --config x.yaml"),
    (
        ["run", "clip4clip", "shapes-5", "--preset", "paper,shaps"],
        "Run: ctvr run clip4clip shapes-5 --preset paper,shapes",
    ),
    (["run", "lwf", "shapes-5", "method.base=clip4clp"], "method.base: no method called 'clip4clp'. Did you mean"),
    (["doctor", "gpu"], "'gpu': is an option. Run: ctvr doctor --gpu"),
    (["doctor", "shapes-5"], "'shapes-5': is a stream. Run: ctvr doctor --stream shapes-5"),
    (["runs", "shapes-5"], "shapes-5: no such action of runs. Run: ctvr runs --stream shapes-5"),
    (["runs", "--split", "val"], "--split: is an option of ctvr table, not of this command. Omit it."),
    (["report", "shapes-5", "--html", ""], "--html: its value is empty. Use --html FILE, or omit it."),
    (["methods", "new", "idée"], "methods new 'idée': is not a module name. Use lower-case letters"),
    (["methods", "new", "my_idea", "--into", "nowhere"], "--into nowhere: is not a folder. Create it first"),
    (["streams", "check", "shapes-5", "--videos", "nowhere"], "--videos: nowhere is not a folder."),
    (["methods", "check"], "methods check: NAME is missing. Usage: ctvr methods check NAME"),
    (["swep"], "swep: no such command. Run: ctvr sweep"),
    (["serch", "a cat"], "serch: no such command. Run: ctvr search 'a cat'"),
    (["sweep", "--trails", "3"], "--trails: no such option. Run: ctvr sweep --trials 3"),
    (["sweep", "--trials", "x"], "--trials: is not a whole number (got 'x'). Use --trials 3."),
    (["sweep", "--trials"], "--trials: has no value. Use --trials 3."),
    (["sweep", "--smoke=yes"], "--smoke: takes no value (got 'yes'). Run: ctvr sweep --smoke"),
    (["sweep", "optim.epochs"], "optim.epochs: has no value. Use optim.epochs=VALUE."),
    (["sweep", "optim.epochs", "2"], "optim.epochs: has no value. Run: ctvr sweep optim.epochs=2"),
    (["run", "clip4clip", "shapes-5", "--epochs", "2"], "Run: ctvr run clip4clip shapes-5 optim.epochs=2"),
    (["run", "clip4clip", "shapes-5", "--lr=1e-5"], "Run: ctvr run clip4clip shapes-5 method.lr=1e-5"),
    (["run", "clip4clip", "shapes-5", "lr=1e-5"], "Run: ctvr run clip4clip shapes-5 method.lr=1e-5"),
    (["run", "CLIP4Clip", "shapes-5"], "Did you mean clip4clip? All: `ctvr methods`. Run: ctvr run clip4clip"),
    (["run", "clip4clip", "shapes-5", "shapes-10"], "'shapes-10': is a second stream after shapes-5"),
    (
        ["run", "clip4clip", "shapes-5", "optim.epochs=2,4"],
        "takes one value, not 2 (got '2,4'). Run each: ctvr sweep clip4clip shapes-5 --vary optim.epochs=2,4",
    ),
    (["run", "clip4clip", "shapes-5", "seed=-1"], "seed must be a whole number from 0 to 4294967295, got -1"),
    (["run", "clip4clip", "shapes-5", "evaluation.patience=0"], "evaluation.patience must be >= 1, got 0. Use none"),
    (
        ["run", "clip4clip", "shapes-5", "evaluation.patience=2"],
        "evaluation.patience=2 counts epochs without improvement, which evaluation.select=last does not measure",
    ),
    (["sweep", "--space", "method.beta=0.1,0.2", "method.beta=0.3"], "--space method.beta: is given twice"),
    (["report", "x", "--html", "/nosuch/x.html"], "--runs: runs has no runs"),
    (["reproduce", "ctvr-table1"], "reproduce: 'ctvr-table1' is a table's preset. Run: ctvr reproduce "),
    (["sweep", "optim.epochs=1", "optim.epochs=2"], "optim.epochs: given twice"),
    (["sweep", "--method", "clip4clpi"], "method: no method called 'clip4clpi'. Did you mean clip4clip?"),
    (
        ["sweep", "--trials", "0"],
        "search: trials must be >= 1, got 0. Use --trials 8, or train without a search: ctvr run METHOD STREAM.",
    ),
    (["sweep", "--searcher", "bayes"], "searcher: 'bayes' is none of tpe, random, grid"),
    (["sweep", "--workers", "0"], "--workers: must be >= 1, got 0"),
    (["sweep", "--gpus-per-trial", "-1"], "--gpus-per-trial: must be >= 0"),
    (
        ["sweep", "--expect-sources", "0123456789ab"],
        "--expect-sources 0123456789ab: this machine has other sources (",
    ),
    (["sweep", "--storage", "s3://key:hidden@bucket/x"], "--storage: contains a password. Remove it"),
    (["sweep", "--name", "a/b"], "for example a-b. Run: ctvr sweep --name a-b"),
    (["sweep", "--resume", "monday"], "--resume: 'monday' does not exist. Known: none yet."),
    (["sweep", "--resume", "monday", "optim.epochs=2"], "resumes with the settings of the first command"),
    (["rerun", "--sweep", "monday"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["rerun"], "rerun: the name of the sweep is missing. Usage: ctvr rerun NAME"),
    (["table"], "table: the name of a sweep or a stream is missing. Run, for example: ctvr table shapes-5"),
    (["table", "a,", "b"], "a, b: is a list with a space. Run: ctvr table a,b"),
    (["runs", "7619a965"], "7619a965: no such action of runs. Run: ctvr runs show 7619a965"),
    (["table", "--sweep", "monday"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["search", "a square", "--model", "best-shapes-5"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["report", "shapes-5"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["run", "--config", "none.yaml"], "--config none.yaml: cannot be read (No such file or directory)"),
    (["methods", "--json", "clip4clpi"], "method: no method called 'clip4clpi'"),
    (["run", "--method", "clip4clip", "--stream", "shapse-5"], "shapse-5"),
    (
        ["run", "--method", "clip4clip"],
        "run: the stream is missing; `ctvr streams` lists them. Run, for example: ctvr run clip4clip shapes-5",
    ),
    (["methods", "show", "clip4clpi"], "no method called 'clip4clpi'. Did you mean clip4clip?"),
    (["streams", "check", "nothing.json"], "nothing.json"),
    (["streams", "check", f"shapes-5@{'9' * 5000}"], "no stream called"),
    (["run", "x" * 300, "shapes-5"], "no method called"),
    (["runs", "list"], "list: no such action of runs. Run: ctvr runs"),
    (["runs", "delete", "x"], "delete: no such action of runs. Run: ctvr runs rm x"),
    (["cache", "biuld"], "biuld: no such action of cache. Run: ctvr cache build"),
    (["ui", "--port", "99999"], "--port 99999"),
    (["sweep", "--baselines", "lora,clip4clpi"], "no method called 'clip4clpi'. Did you mean clip4clip?"),
    (["sweep", "--confirm", "-1"], "search: confirm must be >= 0, got -1. Use --confirm 0 to skip the confirmation"),
    (
        ["sweep", "--scheduler", "halvin"],
        "scheduler: 'halvin' is none of halving, none, asha, hyperband, median_stopping, bohb. Did you mean 'halving'?",
    ),
    (["sweep", "--scheduler", "asha", "--searcher", "grouped_tpe"], "asha cannot stop the trials of"),
    (["sweep", "--space", "method.beta"], "--space: 'method.beta' is not name=VALUE,VALUE"),
    (["sweep", "--space", "bta=1,2"], "bta: no such setting. Use method.beta=1,2."),
    (["sweep", "--space", "method.beta=a,b"], "method.beta: is not a number (got 'a'). Use method.beta="),
    (["sweep", "--space", "method.beta=0.1,7"], "beta must be in [0, 1], got 7"),
    (["sweep", "--space", "seed=1,2"], "seed: not applicable"),
    (["sweep", "--baselines", "lwf:nope"], "--baselines: lwf has no preset called 'nope'"),
    (["sweep", "--budget-hours", "-1"], "--budget-hours: must be > 0 and < 10000, got -1"),
    (["sweep", "--max-nodes", "1", "--nodes", "3"], "--max-nodes: must be >= --nodes, got 1 and 3"),
    (["sweep", "--worker-timeout-hours", "0"], "--worker-timeout-hours: must be > 0"),
    (["sweep", "--top", "0"], "--top: must be >= 1, got 0. Use --top 1."),
    (["run", "--config", "."], "--config .: cannot be read (it is a folder)"),
    (["run", "--method", "no.such:Thing", "--stream", "shapes-5"], "no.such cannot be imported"),
    (["methods", "clip4clip", "--cost"], "methods: --cost shows all methods"),
    (["methods", "--tasks", "100"], "methods: --tasks requires --cost. Run ctvr methods --cost --tasks 100."),
    (
        ["cache", "--runs", "nowhere"],
        "nowhere/store: does not exist. Pass the store of earlier runs",
    ),
    (["cache", "gc", "--store", "nope", "--older-than", "3"], "--store nope: does not exist"),
    (["cache", "verify"], "runs/store: does not exist"),
    (["runs", "explain", "abcd"], "--runs: runs has no runs (mlflow.db does not exist)"),
    (["runs", "sync", "--runs", "nowhere"], "--runs nowhere: has no runs. Pass the folder of earlier runs."),
    (["runs", "sync", "--store", "mine"], "--store mine: requires --rebuild. Add --rebuild, or omit --store."),
    (["runs", "attach", "monday"], "runs attach: no sweep 'monday' was submitted to this machine"),
    (
        ["streams", "import", "csv", "none.csv"],
        "streams import csv: --videos is missing. Usage: ctvr streams import",
    ),
    (
        ["streams", "import", "msrvtt", "a.pkl"],
        "'a.pkl' lacks the name of its argument. Usage: ctvr streams import msrvtt",
    ),
]
LINES = [
    (f"{SWEEP} --gpus 1", f"--gpus: no such option. Run: ctvr {SWEEP} --gpus-per-trial 1"),
    (f"{SWEEP} --gpus=1", f"--gpus: no such option. Run: ctvr {SWEEP} --gpus-per-trial 1"),
    (f"{SWEEP} --smo", f"--smo: no such option. Run: ctvr {SWEEP} --smoke"),
    (f"{SWEEP} --max 3", "--max: is the beginning of --max-concurrent and --max-nodes. Use one of them in full."),
    (f"{SWEEP} --seed 3", "--seed: is a setting, not an option, and seed: not applicable, because all trials have"),
    ("search a red box --model m", "put the text in quotes. Run: ctvr search 'a red box' --model m"),
    ("search a red --model m box", "3 queries of one word each. For one query, put the text in quotes."),
    ("methods chek lwf", "chek: no such action of methods. Run: ctvr methods check lwf"),
    ("serve --mod x", "--mod: no such option. Run: ctvr serve --model x"),
    ("serve clip4clip", "serve: --model is missing. Run: ctvr serve --model clip4clip"),
    ("serve --model=", "--model: its value is empty. Use --model MODEL, or omit it."),
    ("--vers", "--vers: no such option. Run: ctvr --version"),
    ("methods --method clip4clip", "--method: is an argument, not an option. Run: ctvr methods show clip4clip"),
    ("streams import csv --table a.csv", "is an argument, not an option. Run: ctvr streams import csv table=a.csv"),
    ("streams import csv --name a/b", "(got 'a/b'). Use letters, digits and . _ - (at most 100"),
    ("reproduce bmu/table2 --name é", "for example e. Run: ctvr reproduce bmu/table2 --name e"),
    (
        "streams frames https://x.org/a.mp4",
        "FILE: is a URL, not a path (got 'https://x.org/a.mp4'). Use a path on",
    ),
    ("streams frames ~nosuchuser/a.mp4", "FILE: '~nosuchuser/a.mp4': the user does not exist. Use the whole path."),
    ("plot attention m --count 1e99", "--count: is not a whole number (got '1e99'). Use --count 3."),
    ("streams check shapes-5 --videos -", "--videos: - is not a folder."),
    ("doctor --videos none", "--videos: none is not a folder."),
    ("ui --runs none", "--runs: none has no runs"),
    ("streams list", "list: no such action of streams. Run: ctvr streams"),
    ("streams shapes-5", "shapes-5: no such action of streams. Run: ctvr streams check shapes-5"),
    ("export onnx", "onnx: no such action of export. Use hf."),
    (
        "run shapes-5 shapes-10",
        "are two streams, but a stream and a method are needed. Run: ctvr run shapes-5 clip4clip",
    ),
    (
        "run clip4clip lwf",
        "are two methods, but a method and a stream are needed. Run: ctvr run clip4clip shapes-5",
    ),
    (
        "run clip4clip lwf shapes-5",
        "is a second method after clip4clip. Omit it. Run: ctvr run clip4clip shapes-5",
    ),
    ("sweep clip4clip lwf", "after clip4clip, which is searched. Run: ctvr sweep clip4clip --baselines lwf"),
    ("sweep shapes-5 worlds-5", "'worlds-5': is a second stream after shapes-5. Omit it. Run: ctvr sweep shapes-5"),
    ("methods shapes-5", "method: 'shapes-5' is a stream, not a method. Use a method; `ctvr methods` lists them."),
    ("cache build lwf", "stream: 'lwf' is a method, not a stream. Use a stream; `ctvr streams` lists them."),
    ("methods check clip4clip shapes-5", "'shapes-5' is not a setting. Use name=value, for example"),
]
IN_SWEEP = [
    (
        ["--preset", "ctvr-tabel1"],
        "--preset: 'ctvr-tabel1' is neither a table nor a preset of framefusion_moe. Did you mean 'ctvr-table1'? "
        "Tables: bmu-fig4, ",
    ),
    (["--preset", "mine.json"], "mine.json"),
    (["--preset", "ctvr-table1", "--rows", "lfw"], "--rows: row 'lfw' does not exist. Did you mean 'lwf'?"),
    (
        ["--preset", "ctvr-table1", "--method", "lwf"],
        "--method: not applicable, because a table determines its rows",
    ),
    (
        ["--preset", "ctvr-table1", "--baselines", "lwf"],
        "--baselines: not applicable, because a table determines its rows",
    ),
    (["--preset", "ctvr-table1", "--space", "a=1"], "--space: not applicable, because a table determines its rows"),
    (["--preset", "ctvr-table1", "--top", "2"], "--top: not applicable, because a table determines its rows"),
    (["--preset", "ctvr-table1", "--searcher", "grid"], "all rows of a table get the same number of trials"),
    (["--preset", "ctvr-table1", "--trials", "-1"], "search: trials must be >= 0, got -1"),
    (["--preset", "ctvr-table1", "--seeds", "-1"], "--seeds: must be >= 0, got -1"),
    (
        ["--preset", "ctvr-table1", "--trials", "0", "--seeds", "0"],
        "--trials 0 and --seeds 0 leave nothing to run",
    ),
    (["--preset", "ctvr-table1", "search.metrik=x"], "search.metrik: no such setting. Run: ctvr sweep"),
    (["--rows", "lwf"], "--rows lwf: applies to tables only"),
    (["--resume", "n", "--trials", "3"], "resumes with the settings of the first command. Omit --trials"),
    (["--resume", "n", "--preset", "ctvr-table1"], "Omit --preset"),
    (["--resume", "n", "--direction", "both"], "Omit --direction"),
    (["--resume", "n", "--workers", "2"], "resumes with the settings of the first command. Omit --workers"),
    (["--resume", "n", "--cpus-per-worker", "2"], "Omit --cpus-per-worker"),
    (["--resume", "n", "--gpus-per-trial", "0"], "Omit --gpus-per-trial"),
    (["--resume", "n", "--accelerator-type", "A100"], "Omit --accelerator-type"),
    (["--trials", "3", "search.trials=4"], "search.trials: given twice, as 3 and '4'"),
    (["--objectives", "gain,gmac"], "--objectives: 'gmac' is none of gain, r1, r1_mean, forgetting, gmacs, "),
    (["--objectives", ","], "--objectives: is an empty list (got ','). Use each of gain, r1, "),
    (["--objectives", "gain,gain"], "--objectives: a name is repeated (got 'gain,gain'). Use each of gain, r1, "),
    (["--objectives", "gain,gmacs", "search.metric=stream/t2v/r1"], "search.metric: given twice, as"),
    (
        ["--preset", "ctvr-table1", "--objectives", "gain,gmacs"],
        "are several objectives, but a table selects by one",
    ),
    (["--resume", "n", "--objectives", "gain,gmacs"], "Omit --objectives"),
]
MISTAKES += [(line.split(), message) for line, message in LINES]
MISTAKES += [(["sweep", *words], message) for words, message in IN_SWEEP]
MISTAKES += [(["methods", ""], "is an empty argument, perhaps an unset variable. Omit it. Run: ctvr methods")]


@pytest.mark.wording
@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_status_2(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = ctvr(capsys, *words)
    lines = [line for line in err.splitlines() if not line.startswith("doctor: ")]
    assert (status, out) == (2, "")
    assert len(lines) == 1, err
    assert message in lines[0]
    assert lines[0].startswith("ctvr")
    assert not list(tmp_path.iterdir()), "nothing is made"


@pytest.mark.parametrize("words", ["run --method shapes-5 --stream clip4clip", "run --method shapes-5"])
def test_a_stream_in_the_place_of_a_method_is_one_of_several_mistakes(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    status, out, err = ctvr(capsys, *words.split())
    assert (status, out, list(tmp_path.iterdir())) == (2, "", [])
    corrected = "ctvr run --method clip4clip --stream shapes-5" if "--stream" in words else "ctvr methods`"
    assert corrected in err.splitlines()[-1]
