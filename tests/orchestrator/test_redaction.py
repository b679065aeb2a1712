"""Secrets are never printed, logged or recorded; a finding names a secret and does not repeat it."""

import io
import json
import logging
import os
import pickle
import random
import shutil
import string
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ctvr.orchestrator.cli.supervisor import SupervisedCommand, _keep_log
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.on_ray.plan import TrialPlan, write_plan
from ctvr.orchestrator.pages.html import write_page
from ctvr.orchestrator.redaction import hide_secrets, redact, redact_data, redact_error, secret_values
from ctvr.orchestrator.tracking.messages import without_secrets
from ctvr.orchestrator.tracking.server import default_uri

REPOSITORY = Path(__file__).resolve().parents[2]
CANARY = "cAnArY-7gK2"  # every planted secret begins so; made up
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-aws-secret",
    "AWS_SESSION_TOKEN": f"{CANARY}-aws-session",
    "MLFLOW_TRACKING_TOKEN": f"{CANARY}-mlflow-token",
    "HF_TOKEN": f"{CANARY}-hf",
    "WANDB_API_KEY": f"{CANARY}-wandb",
    "OPENAI_API_KEY": f"{CANARY}-openai",
    "GITHUB_TOKEN": f"{CANARY}-github",
    "DB_PASSWORD": f"{CANARY}-database",
    "SSH_PRIVATE_KEY": f"{CANARY}-ssh",
    "RAY_AUTH_TOKEN": f"{CANARY}-ray-0123456789abcdef",  # of the cluster that the command starts
}


def test_secrets_of_variables_and_addresses_are_redacted():
    environment = {"AWS_SECRET_ACCESS_KEY": "abcdefgh12345678", "MAX_TOKENS": "4096", "A_PASSWORD": "abcdefgh1234"}
    text = redact("key abcdefgh12345678, abcdefgh1234; 4096 at https://me:open@host/x and s3:/k:s@b", environment)
    assert text == "key ***, ***; 4096 at https://***@host/x and s3:/***@b"


def test_only_values_that_can_be_secrets_are_redacted():
    environment = {
        "AWS_SECRET_ACCESS_KEY": f"{CANARY}-1",
        "MAX_TOKENS": "100000",
        "RAY_AUTH_TOKEN_PATH": "/home/someone/token",
        "DB_PASSWORD": "password",
        "PLAIN": f"{CANARY}-1",
    }
    assert set(secret_values(environment)) == {"AWS_SECRET_ACCESS_KEY"}


@pytest.mark.parametrize("before", ["", "..", "a.b.", "-", "._"])
def test_a_name_after_dots_is_that_of_a_secret(before):
    assert redact(f"{before}token: '{CANARY}-x y'", {}) == f"{before}token: '***'"


@pytest.mark.parametrize("text", ["a@b", "http://host/a@b", "me@host: hello", "r1 25.9", "file:///a/b@c"])
def test_other_text_stays_as_it_is(text):
    assert redact(text, {}) == text


def test_no_log_line_of_any_library_holds_a_secret(monkeypatch, caplog):
    monkeypatch.setenv("SOME_TOKEN", f"{CANARY}-logged")
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    hide_secrets()
    hide_secrets()
    logging.getLogger("some.library").warning("sent %s to %s", f"{CANARY}-logged", "http://u:p@host")
    logging.getLogger("some.library").warning("100 % sure")
    assert caplog.messages == ["sent *** to http://***@host", "100 % sure"]


def test_a_password_in_the_tracking_address_becomes_a_variable_of_its_own(monkeypatch, tmp_path):
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "old")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me%40lab:p%3Aw@tracking.example:5000/base")
    assert default_uri(tmp_path) == "https://tracking.example:5000/base"
    assert os.environ["MLFLOW_TRACKING_URI"] == "https://tracking.example:5000/base"
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == "me@lab"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "p:w"


KINDS = {
    "password of an address": "https://me:{}@host/x",
    "password with an at sign": "https://me:{}@x@host/x",
    "token of an address": "https://host/api?a=1&token={}&b=2",
    "access key of an address": "https://host/api?access_key={}",
    "signed address": "https://bucket.s3.amazonaws.com/v.mp4?X-Amz-Credential={0}%2F2026&X-Amz-Signature={0}",
    "shared access signature": "https://a.blob.core.windows.net/v.mp4?se=2026&sig={}",
    "database": "postgresql://host/db?user=me&password={}",
    "setting": "secret_key={}",
    "option": "--api-key {}",
    "JSON": '{{"access_token": "{}"}}',
    "repr": "{{'db_password': '{}'}}",
    "bearer": "Authorization: Bearer {}",
    "basic": "{{'Authorization': 'Basic {}'}}",
    "connection string": "AccountName=a;AccountKey={};EndpointSuffix=x",
    "password with a slash": "s3://key:ab/{}+x=@bucket/x",
    "password with a quote": "https://me:p'{}@host/x",
    "address in JSON": r"https:\/\/me:{}@host\/x",
    "address in an address": "https://host/?next=https%3A%2F%2Fme%3A{0}%40host%2F%3Ftoken%3D{0}",
    "quoted setting with spaces": "HF_TOKEN='a b {}'",
    "YAML": 'aws_secret_access_key: "{}"',
    "JSON in a text": r"{{\"token\": \"{}\"}}",
    "netrc": "machine host login me password {}",
    "words": "wrong password '{}'",
    "other scheme": "Authorization: ApiKey {}",
    "digest": 'Authorization: Digest username="me", response="{}"',
    "pairs": "[('Authorization', '{}')]",
    "pairs of bytes": "(b'authorization', b'Bearer {}')",
    "header of a proxy": "Proxy-Authorization: Negotiate {}",
    "cookie": "Cookie: session={}",
}
FORMS = {
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "Hugging Face": "hf_" + "aB3" * 11,
    "GitHub": "ghp_" + "aB3" * 12,
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
    "private key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END PRIVATE KEY-----",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_found_wherever_it_stands_in_a_text(kind):
    draw = random.Random(kind)
    for _ in range(50):
        secret = "".join(draw.choices(string.ascii_letters + string.digits, k=draw.randint(6, 40))) + "7x"
        before, after = draw.choice(["", "x ", "store: ", "[", '"', "\n"]), draw.choice(["", " y", ", y", "\ny", "]"])
        text = before + KINDS[kind].format(secret) + after
        assert secret not in redact(text, {}), text
        assert redact(redact(text, {}), {}) == redact(text, {})


@pytest.mark.parametrize("form", FORMS)
def test_a_token_is_known_by_its_form(form):
    assert redact(f"a {FORMS[form]} b", {}) == "a *** b"


@pytest.mark.parametrize(
    "text",
    [
        "method.prompt_tokens=8 data.num_frames=4",
        "password: Leave it out.",
        "--storage: contains a password. Remove it, and set AWS_* variables on every node instead.",
        "Ray's token: is readable by others",
        "basic settings, bearer of news, key: 0123456789abcdef",
        "http://host:8080/a@b small@3",
        "token=8 password=none",
        "sha256 " + "0123456789abcdef" * 4,
    ],
)
def test_a_text_that_only_resembles_a_secret_stays(text):
    assert redact(text, {}) == text


def test_the_forms_of_a_variable_are_found_too():
    secret = 'p"s/s w\\ö-1234'
    environment = {"DB_PASSWORD": secret, "KEY_PASSPHRASE": "first-line-0001\nsecond-line-0002", "PWD": "/home/someone"}
    environment |= {
        "HTTPS_PROXY": "http://me:proxy%21pass-1@host:3128",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json",
    }
    for text in (secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), quote(secret, safe="")):
        assert redact(f"a {text} b", environment).replace('"', "") == "a *** b"
    assert redact("1 first-line-0001\n2 second-line-0002\n", environment) == "1 ***\n2 ***\n"
    assert redact("proxy!pass-1 /home/someone /etc/key.json", environment) == "*** /home/someone /etc/key.json"


def test_plain_data_is_redacted_by_its_keys_and_texts():
    data = {"settings": {"api_key": "abcdefgh1234", "seed": 0, "method.prompt_tokens": "8"}, "uri": ["http://u:p@h"]}
    found = redact_data(data)
    assert found == {"settings": {"api_key": "***", "seed": 0, "method.prompt_tokens": "8"}, "uri": ["http://***@h"]}


def test_large_texts_are_searched_in_a_moment():
    """A page with its pictures must not be scanned repeatedly for any word."""
    text = f"<img src='data:{'abcDEF123+/' * 30_000}'> {'a_b.c-' * 10_000}key=0"
    assert redact(text, {}) == text


def test_pictures_stay_and_secrets_around_them_are_redacted():
    picture = f"data:image/jpeg;base64,{'abcDEF123+/' * 30}AKIA{'B' * 16}="
    page = f"<img src='{picture}'> token={'x9' * 8} <img src='{picture}'>"
    assert redact(page, {}) == page.replace("x9" * 8, "***")
    assert redact(f"token={picture}", {}).startswith("token=***;")
    assert redact(page.replace("image", "text"), {}).count("***") == 3  # not a picture: a key of AWS is looked for
    assert redact(f"\0 token={'x9' * 8} {picture}", {}).startswith("\0 token=*** ")


def raise_with(secret: str) -> None:
    try:
        raise OSError(2, "no such file", f"/x?token={secret}")
    except OSError as error:
        raise ConfigError(f"store https://me:{secret}@host: {error}") from error


def test_an_error_and_what_it_was_raised_from_are_redacted():
    with pytest.raises(ConfigError) as caught:
        raise_with(f"{CANARY}-raised")
    assert CANARY not in str(caught.value)
    assert CANARY in traceback.format_exc() or caught.value.__cause__ is not None
    redact_error(caught.value)
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    error = VideoError(f"https://me:{CANARY}@host/v.mp4", f"token={CANARY}")
    assert CANARY not in f"{error} {error.path} {error.reason} {pickle.loads(pickle.dumps(error))}"
    nested = ValueError({"token": f"{CANARY}-0"}, [f"https://me:{CANARY}@host"], f"https://me:{CANARY}@host".encode())
    nested.__notes__ = [f"https://me:{CANARY}@host"]  # what `add_note` of Python 3.11 writes
    redact_error(nested)
    assert CANARY not in f"{nested} {nested.__notes__}"


def test_a_warning_holds_no_secret(monkeypatch):
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    hide_secrets()
    text = warnings.formatwarning(
        UserWarning(f"https://me:{CANARY}@host"), UserWarning, "file.py", 1, f"x = '{CANARY}'"
    )
    assert "UserWarning: https://***@host" in text


def test_tracebacks_and_stacks_of_log_records_hold_no_secret(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", f"{CANARY}-logged")
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    hide_secrets()
    said = io.StringIO()
    logger = logging.Logger("some.library")
    logger.addHandler(logging.StreamHandler(said))
    try:
        raise_with(f"{CANARY}-logged")
    except ConfigError:
        logger.exception("failed")
    logger.error("stack of %s", "x", stack_info=f"{CANARY}-logged" != "")
    logger.error("%s and %s", f"{CANARY}-logged")  # too few arguments
    try:
        raise ValueError("plain")
    except ValueError:
        logger.exception("kept")
    text = said.getvalue()
    assert CANARY not in text
    assert "Traceback" in text
    assert "ValueError: plain" in text
    assert "raise_with" in text


def test_uncaught_exceptions_are_printed_without_secrets():
    code = "import os, threading\nfrom ctvr.orchestrator.redaction import hide_secrets\nhide_secrets()\n"
    code += f"def fail(): raise ValueError('token={CANARY}-thread')\n"
    code += f"t = threading.Thread(target=fail); t.start(); t.join()\nraise ValueError('password={CANARY}-main')\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert CANARY not in done.stderr
    assert done.stderr.count("ValueError") == 2


def test_no_output_or_record_contains_a_secret(tmp_path, capsys, monkeypatch):
    """All outputs of this process are checked: terminal, MLflow's records, pages, plans, the log of a dead driver."""
    monkeypatch.setenv("SOME_TOKEN", f"{CANARY}-door")
    texts = [f"{CANARY}-door", f"https://me:{CANARY}@host/x", f"https://host/?token={CANARY}", f"secret={CANARY}-7"]
    for number, text in enumerate(texts):
        say(text)
        told = without_secrets({"op": "tags", "values": {"a": text}})
        told |= {"text": without_secrets({"op": "text", "name": "a.json", "text": json.dumps({"a": text})})}
        (tmp_path / f"told{number}").write_text(json.dumps(told))
        write_page(tmp_path / f"{number}.html", f"<p>{text}</p>")
        settings = {"method": "clip4clip", "data.videos": text}
        plan = TrialPlan("s", "r", "s", text, None, "s", settings=settings, tags={"a": text})
        write_plan(plan, tmp_path / f"plan{number}", where={"storage": text})
    (tmp_path / "log").write_text("\n".join(texts))
    assert (
        _keep_log(SupervisedCommand(["sweep"], tmp_path / "runs", name="s"), tmp_path / "log")
        == tmp_path / "runs/drivers/s.log"
    )
    (tmp_path / "log").unlink()
    said = capsys.readouterr().err
    assert said.count("***") == len(texts)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 3 * len(texts) + 1
    assert CANARY not in said + "".join(file.read_text() for file in files)


# ------------------------------------------------------------------------------------------ whole commands


def ctvr(*words: str | Path, **environment: str) -> str:
    """Run a command and return its output on both streams."""
    done = subprocess.run(
        [sys.executable, "-m", "ctvr", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **PLANTED, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["--store", f"https://me:{CANARY}-store@host/bucket"], {}),
        (["--store", f"s3://bucket/x?secret={CANARY}-store"], {}),
        (["--storage", f"s3://key:{CANARY}-ray@bucket/x"], {}),
        ([f"backbone.weights=https://me:{CANARY}-weights@host/w.pt"], {}),
        ([f"backbone.wieghts=https://me:{CANARY}-weights@host/w.pt"], {}),
        (["--address", f"ray://me:{CANARY}-ray@127.0.0.1:9"], {}),
        ([], {"MLFLOW_TRACKING_URI": f"http://me:{CANARY}-uri@127.0.0.1:9"}),
        (
            ["--store", "s3://bucket/x"],
            {"AWS_ACCESS_KEY_ID": "x", "AWS_ENDPOINT_URL": f"http://m:{CANARY}-e@127.0.0.1:9"},
        ),
    ],
)
def test_a_command_that_fails_does_not_print_the_secret_that_it_was_given(manifest, runs, words, environment):
    base = ["sweep", "--runs", runs, "--method", "clip4clip", "--stream", manifest, "--local-cpus", "2", "--seeds", "0"]
    said = ctvr(*base, *words, **environment)
    assert "ctvr" in said
    assert CANARY not in said
    assert "Traceback" not in said
    assert not [file for file in runs.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[str]:
    """Start an MLflow server on this machine that accepts any name and password."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command += ["--artifacts-destination", str(tmp_path / "artifacts"), "--port", str(free_port), "--workers", "1"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{free_port}/health", timeout=5)
                break
            except OSError:
                assert time.monotonic() < until, (tmp_path / "server.log").read_text()
                time.sleep(0.5)
        yield f"127.0.0.1:{free_port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sweep_leaves_no_secret_in_its_folder_in_mlflow_or_in_rays_logs(manifest, runs, tmp_path, server):
    """The secrets are ten environment variables and the password of the tracking address."""
    ray_folder = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))
    words = ["sweep", "--runs", runs, "--name", "s", "--method", "clip4clip", "--stream", manifest, "--seeds", "0"]
    words += ["--searcher", "grid", "--space", "method.lr=0,4e-6", "--scheduler", "none", "--confirm", "0"]
    words += ["--local-cpus", "2", "optim.weight_decay=0.2", "method.train_scale=true", "method.frame_norm=none"]
    try:
        said = ctvr(*words, MLFLOW_TRACKING_URI=f"http://me:{CANARY}-uri@{server}", RAY_TMPDIR=str(ray_folder))
        assert "2 complete, 0 stopped early, 0 failed" in said
        said += ctvr(
            "doctor", "--runs", runs, "--stream", manifest, MLFLOW_TRACKING_URI=f"http://me:{CANARY}-u@{server}"
        )
        assert CANARY not in said
        files = [file for folder in (runs, tmp_path, ray_folder) for file in folder.rglob("*") if file.is_file()]
        assert len(files) > 50
        assert any(file.name == "plan.json" for file in files)
        assert any("runtime_env_agent" in file.name for file in files)
        assert [file for file in files if not file.is_symlink() and CANARY.encode() in file.read_bytes()] == []
    finally:
        shutil.rmtree(ray_folder, ignore_errors=True)
