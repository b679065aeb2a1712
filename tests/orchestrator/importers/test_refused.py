"""A wrong file is refused in one line with its name, whichever importer reads it."""

import codecs
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.csv_table import import_csv
from ctvr.orchestrator.importers.ctvr import import_actnet, import_msrvtt, read_split
from ctvr.orchestrator.importers.cvlm import import_cvlm
from ctvr.orchestrator.importers.hf_dataset import import_dataset
from tests.orchestrator.importers.benchmark_files import write_json
from tests.orchestrator.importers.test_shards import TWO_VALUES, WHOLE, packed

HEADER = "video,caption,category,split,task\n"
TIMES = HEADER.replace("\n", ",start,end\n")
TABLE = (HEADER + "v0,a dog,c,train,1\n").encode
POINTER = "version https://git-lfs.github.com/spec/v1\n"
LSMDC = "lsmdc/LSMDC16_annos_training.csv"
VATEX, VAL = "vatex/vatex_training_v1.0.json", "video_id,sentence\n"
ROW = {"file_name": "a.mp4", "text": "a dog"}

# Importer -> (the fixture with its files, the call)
IMPORTERS: dict[str, tuple[str, Any]] = {
    "csv": ("tmp_path", lambda folder: import_csv(folder / "t.csv", folder, None)),
    "cvlm": ("five", lambda folder: import_cvlm(folder, None)),
    "lsmdc": ("five", lambda folder: import_cvlm(folder, None, ["lsmdc"])),
    "msrvtt": ("msrvtt", lambda files: import_msrvtt(**files)),
    "actnet": ("actnet", lambda files: import_actnet(**files)),
    "split": ("tmp_path", lambda folder: read_split(folder / "x.pkl")),
    "dataset": ("tmp_path", lambda folder: import_dataset(folder, None)),
    "table": ("tmp_path", lambda folder: import_dataset(folder, None)),
}

# Importer and file -> (its wrong content, what is said of it); a colon at the beginning stands after the file's name
REFUSED: dict[tuple[str, str], list[tuple[Any, str]]] = {
    ("csv", "t.csv"): [
        (HEADER + "v0,nan,c,train,1\n", ": line 2: caption is 'nan', which marks a missing value"),
        (HEADER + "v0,\"['a', b']\",c,train,1\n", ": line 2: ... not a list"),
        (HEADER + "v0,a dog, brown,c,train,1\n", ": line 2: has 6 cells, but the header has 5"),
        (HEADER + 'v0,"Old man" walks,c,train,1\n', ": line 2: not a .csv file"),
        (HEADER + 'v0,"a\nb",c,train,1\nv1,"a dog,c,test,1\n', ": line 4: not a .csv file"),
        (HEADER.encode() + b"v0,caf\xe9,c,train,1\n", ": line 2: byte 0xe9 ... iconv -f windows-1252"),
        (gzip.compress(HEADER.encode(), mtime=0), ": line 1 is not UTF-8 text. Pass a text file."),
        (b"\x89HDF\r\n\x1a\n\0", ": line 1 is not UTF-8 text. Pass a text file."),
        (b"PK\x03\x04\x14\0\xf3\n", ": line 1 is not UTF-8 text. Pass a text file."),
        (codecs.BOM_UTF16_LE + b"\0\xd8\0\0", ": line 1 is not UTF-16 text. Pass a text file."),
        (TABLE("utf-32"), ": is UTF-32 ... iconv -f utf-32"),
        (TABLE("utf-32-le"), ": is UTF-32 ... iconv -f utf-32"),
        (HEADER.encode("utf-16-le"), ": is UTF-16 ... iconv -f utf-16le"),
        (HEADER.encode("utf-16-be"), ": is UTF-16 ... iconv -f utf-16be"),
        ("video,caption,caption,category,split,task\nv0,a,b,c,train,1\n", ": line 1: has 2 columns 'caption'"),
        ("end,start,task,text,video_id\n60,47,226,cut it,a\n", "Rename 'video_id' to 'video' and 'text' to 'caption'."),
        ("video,caption\nv0,a\n", ": line 1: no column 'split', 'task'. ... Add a column split ... tasks="),
        ("video,caption,split\nv0,a,train\n", ": line 1: no column 'task'. ... tasks="),
        (POINTER, ": line 1: no column 'video', 'caption'"),
        ("\ufeff <!DOCTYPE html>\n", ": line 1: no column 'video', 'caption'"),
        ('[{"video": "v0"}]\n', ": is JSON"),
        ('{"vid": "v0", "query": "a"}\n', "Rename 'vid' to 'video' and 'query' to 'caption'."),
        ("v0 0.0 6.9##a dog\n", ": line 1: ... Line 1 must be a header"),
        ("\n", ": is empty"),
        (HEADER, ": has a header but no rows"),
        (HEADER + '"a\tb",a,c,train,1\n', ": line 2: video 'a\\tb': contains"),
        (HEADER + "v0,a,c,train,nan\n", ": line 2: task is 'nan'"),
        (HEADER + "NULL,a,c,train,1\n", ": line 2: video is 'NULL'"),
        (HEADER + "v0,a,c,train,1\nv1,b,c,test,1.0\n", ": tasks '1' and '1.0' are the same"),
        (HEADER + "x,a,c,train,1\nx,a,c,test,1\n", ": line 3: 'x' is also in '1 train c'"),
        (HEADER + "a,a cat,,train,1\nb,a dog,x,test,1\n", ": line 2: category is empty"),
        (TIMES + "v0,a,c,train,1,1_0,2_0\n", ": line 2: ... two numbers"),
        (TIMES + "x,a,c,trainset,1,,\n", ": line 2: split is 'trainset'. Did you mean 'train'"),
        (TIMES + "x,,c,train,1,,\n", ": line 2: caption is empty"),
        (TIMES + "x,a,c,train,1,0,\n", ": line 2: start '0' and end ''"),
        (TIMES + "x,a,c,train,1,a,b\n", ": line 2: ... two numbers"),
        (TIMES + "x,a,c,train,1,2,1\n", ": line 2: segment: is not a time segment"),
        (TIMES + "x,a,c,train,1,nan,1\n", ": line 2: segment: is not a time segment"),
        (TIMES + "../x,a,c,train,1,,\n", ": line 2: video: '../x.mp4' is outside the videos folder"),
        (TIMES + "x,a,c,train,1,,\n", "task_01: test: has no videos"),
    ],
    ("cvlm", VATEX): [
        (None, "vatex: no file matches *train*.json"),
        ({}, ": is not a list"),
        ([{"videoID": "a"}], ": entry 0 lacks 'videoID' or 'enCap'"),
        ([{"videoID": "a", "enCap": [3]}], ": 'a' has a caption that is not text"),
    ],
    ("cvlm", "vatex/old_train.json"): [([], "both match")],
    ("cvlm", "activitynet/val_1.json"): [("[", ": line 1: not JSON")],
    ("cvlm", "activitynet/train.json"): [('{"v_a": 1, "v_a": 2}', ": ... key 'v_a' occurs twice")],
    ("cvlm", "didemo/test_data.json"): [
        ([{"video": "a", "description": ["x"]}], ": entry 0 lacks 'video' or 'description'")
    ],
    ("cvlm", "msvd/test_list.txt"): [("unknown", "1 of 1 videos have no caption, first 'unknown'")],
    ("cvlm", "msvd/raw-captions.pkl"): [
        ("cos\nsystem\n(S'true'\ntR.", ": refused: global 'os.system'"),
        ("(dp0\nS'same'\nI3\ns.", ": 'same' lacks a list of captions"),
        (POINTER.strip(), ": refused: opcode b'v'"),
    ],
    ("cvlm", "msrvtt/MSRVTT_JSFUSION_test.csv"): [(VAL + "video9,nan\n", ": line 2: caption is 'nan'")],
    ("cvlm", "msrvtt/MSRVTT_data.json"): [(None, "no file matches train_val_videodatainfo.json")],
    ("cvlm", "msvd"): [(None, "msvd: no such folder ... omit 'msvd' in datasets")],
    ("lsmdc", LSMDC): [
        ("clip\tstart\tend\tfrom\tto\tsentence\nm_1\t0\t1\t0\t1\tx\n", ": line 1: 'start' is not a time"),
        ("m_3\t0\tno\n", ": line 1: 3 cells, not 6"),
    ],
    ("msrvtt", "MSRVTT_data.json"): [
        ({"videos": []}, ": ... neither 'sentences' nor 'annotations'"),
        ([1], ": ... neither 'sentences' nor 'annotations'"),
        ({"sentences": [{"caption": "x"}]}, ": sentences[0] lacks 'video_id'"),
        ({"sentences": ["x"]}, ": sentences[0] lacks"),
        ({"annotations": [{"image_id": "video0", "caption": 3}]}, ": annotations[0] lacks 'image_id' or 'caption'"),
    ],
    ("msrvtt", "val.csv"): [
        ("key,video,sentence\n1,2,3\n", ": line 1: no column 'video_id'. Did you mean 'video'"),
        ("", ": is empty ... video_id, sentence"),
        (VAL + "video7010,\n", ": line 2: sentence is empty"),
        (VAL + "video7010,a\nvideo7010,b\n", ": line 3: a second caption of 'video7010'"),
        (VAL + 'video7010,"a\n', "not a .csv file"),
        (VAL.encode() + b"video1,\xff\n", "not UTF-8"),
    ],
    ("split", "x.pkl"): [
        ([], "is not a CTVR split"),
        ({"train": {}, "test": {}}, "is not a CTVR split"),
        ({"train": {}, "val": {}}, "train: the tasks are not numbered"),
        ({"train": {2: {}}, "val": {2: {}}}, "not numbered"),
        ({"train": {1: ["a"]}, "val": {1: {}}}, "task 1 does not map categories"),
        ({"train": {1: {"a": [1]}}, "val": {1: {"a": ["b"]}}}, "contains a value that is not an id"),
        ({"train": {1: {"a": ["x"]}}, "val": {1: {"b": ["y"]}}}, "task 1: train and val list different categories"),
        ({"train": {1: {"a": []}}, "val": {1: {"a": []}, 2: {}}}, "different numbers of tasks"),
    ],
    ("actnet", "train_queries.json"): [
        ({"v_a": {"timestamps": [[0, 1], [1, 2]], "sentences": ["a", "b"]}}, "2 sentences, the benchmark has one"),
        (
            {"v_a": {"timestamps": [[0, 1]], "sentences": []}},
            "'v_a': timestamps and sentences are not lists of equal length",
        ),
        ({"v_a": {"timestamps": [["0", 1]], "sentences": ["a"]}}, "'v_a': segment: is not a pair of numbers"),
        ({"v_a": {"timestamps": [[2, 1]], "sentences": ["a"]}}, "'v_a': segment: is not a time ... [2, 1]"),
        ({"v_a": {"timestamps": [7], "sentences": ["a"]}}, "'v_a': timestamps and sentences"),
        ({"v_a": []}, "timestamps and sentences"),
        ({"v_a": "a paragraph"}, "'v_a' does not have timestamps and sentences"),
    ],
    ("dataset", "train/metadata.jsonl"): [
        ({"text": "a"}, ": line 1: file_name is missing"),
        ({"file_name": "a.mp4"}, ": line 1: no caption"),
        (f"{json.dumps(ROW)}\n{json.dumps(ROW | {'start': 'x', 'end': 1})}", ": line 2: start 'x' and end 1 are not"),
        (ROW | {"start": 0, "end": 10**400}, f": line 1: start 0 and end 1{'0' * 39} are not"),
        (ROW | {"file_name": "../../a.mp4"}, "path"),
        ("\n".join([json.dumps(ROW | {"answers": 5})] * 2), ": line 1: column answers is not a list"),
        (ROW | {"answers": [5]}, "answers"),
        *((ROW | {name: ["x"]}, f": line 1: {name} is neither a string") for name in ("task", "category", "video_id")),
    ],
    ("dataset", "train/metadata.csv"): [("file_name,caption\nv.mp4,a dog, brown\n", ": line 2: has 3 cells")],
    ("dataset", "metadata.csv"): [("file_name,text\ntrain/a.mp4,x\n", "both describe")],
    ("table", "metadata.csv"): [
        ("file_name,text\na.mp4,a dog\n", ": line 2: no split"),
        ("file_name,text,split\na.mp4,a dog,x\n", ": line 2: split is 'x'"),
    ],
    ("table", "train.tar"): [
        (packed(a__npy="1"), ": has no video"),
        (packed(a__mp4="1", b__txt="x"), ": ... no caption"),
        (packed(a__mp4="1", a__txt="x", b__txt="x"), ": 'b' has no video"),
        (packed(a__mp4="1", a__webm="1", a__txt="x"), ": 'a' has two files of a video"),
        (packed(a__mp4="1", a__txt=b"caf\xe9"), ": ... is not UTF-8"),
        (packed(a__mp4="1", a__json="[1]"), ": ... its .json is not an object"),
        (TWO_VALUES, ": 'a': its .json files have two values for text"),
        (packed(a__mp4="1", a__json="{"), ": cannot be read as .tar"),
        (packed(a__mp4=""), "'a.mp4' is not a whole file within it"),
        (packed(a__mp4=b"1" * 9999, a__txt="x")[:3000], ": cannot be read as .tar"),
        (gzip.compress(packed(), mtime=0), "(it is compressed; decompress it with gunzip)"),
        # Python would read until a damaged header, the end of the first of two archives, or a cut between members
        (WHOLE[: 4 * 512], ": ... its end is missing"),
        (WHOLE[: 4 * 512 + 100], ": cannot be read as .tar"),
        (
            WHOLE[:2198] + bytes([WHOLE[2198] ^ 1]) + WHOLE[2199:],
            ": ... after byte 2048 it is damaged",
        ),
        (WHOLE + WHOLE, ": ... after byte 4096 it is damaged, or another archive follows"),
    ],
    ("dataset", "test/metadata.csv"): [("file_name,text\na.mp4,x\n", "test/metadata.jsonl ... both describe")],
    ("dataset", "more/metadata.csv"): [("file_name,text\na.mp4,x\n", ": its folder does not name a split")],
    ("dataset", "stream.json"): [
        ({"tasks": [{"name": "10", "categories": ["10"]}], "digest": "0" * 64}, "does not have the digest"),
        ({"tasks": [{"name": "10", "categories": ["10"]}], "digest": "a"}, "does not have the digest"),
        *(({"digest": value}, ": digest: ... not text") for value in (7, ["a"], {"a": 1}, True, None)),
        *(({name: {}}, f": {name}: ... not text") for name in ("name", "protocol")),
        *(({"settings": value}, "settings: is") for value in ([1], "x", None)),
        ({"paper": ["x"]}, "paper: is a list, not text"),
        ({"tasks": 5}, ": tasks: is a number, not a list"),
        ({"tasks": [5]}, ": task no. 1: is a number, not an object"),
        ({"tasks": [{"name": "11"}]}, ": task no. 1: field 'categories' is missing"),
        ({"tasks": [{"name": ["11"], "categories": []}]}, ": task no. 1: name: is a list"),
        ({"tasks": [{"name": "10", "categories": {"10": 1}}]}, ": task no. 1: categories: is an object"),
        ({"tasks": [{"name": "10", "categories": [["10"]]}]}, ": task no. 1: categories: is a list"),
        ({"tasks": [{"name": "10", "categories": ["10"]}] * 2}, ": tasks: '10' occurs twice"),
        ([], ": is not an object"),
    ],
}
CASES = [(importer, file, *row) for (importer, file), rows in REFUSED.items() for row in rows]


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.rename(path.with_name("elsewhere"))
    elif isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(content))
    else:
        write_json(path, content)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("importer", "file", "content", "said"), CASES, ids=[f"{file} {said}" for _, file, _, said in CASES]
)
def test_a_wrong_file_is_refused_in_one_line(importer, file, content, said, tmp_path, request):
    fixture, run = IMPORTERS[importer]
    given = request.getfixturevalue(fixture)
    if importer == "dataset":
        for split in ("train", "test") if file == "stream.json" else ("test",):
            write(tmp_path / split / "metadata.jsonl", ROW | {"file_name": f"{split}.mp4", "task": "10"})
    elif importer == "lsmdc":
        write(tmp_path / "lsmdc" / "LSMDC16_challenge_1000_publictect.csv", "m_4\t0\t1\t0\t1\tx\n")
    write(tmp_path / file, content)
    with pytest.raises(ConfigError) as error:
        run(given)
    line = str(error.value)
    assert "\n" not in line
    assert all(part in line for part in (f"/{file}{said}" if said[0] == ":" else said).split(" ... "))
