"""Ray on this machine: a folder of pictures over two workers, and two replicas behind HTTP."""

import base64
import json
import shutil
import socket
import urllib.error
import urllib.request

import pytest

ray = pytest.importorskip("ray")
from conftest import TINY, runs  # noqa: E402

import pascaline.ray as pr  # noqa: E402

RUNS = {run["name"]: run for run in runs()}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_folder_over_two_workers(tmp_path):
    run = RUNS["one_image"]
    for i in range(6):
        shutil.copy(TINY / run["images"][0], tmp_path / f"{i}.png")
    (tmp_path / "6.png").write_bytes(b"no picture")
    (tmp_path / "notes.txt").write_text("not looked at")
    rows = pr.answer_folder(tmp_path, TINY, run["question"], max_new_tokens=24, dtype="f32").take_all()
    rows.sort(key=lambda row: row["path"])
    assert [row["text"] for row in rows[:6]] == [run["generated_text"]] * 6
    assert rows[6]["error"].startswith("image") and len(rows) == 7
    with pytest.raises(ValueError):
        pr.answer_pictures([], TINY, "?")


def test_two_replicas_behind_http():
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(pr.application(TINY, replicas=2, dtype="f32"))
        run = RUNS["one_image"]
        image = base64.b64encode((TINY / run["images"][0]).read_bytes()).decode()

        def post(body):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        body = {"prompt": run["question"], "images": [image], "max_new_tokens": 24}
        for _ in range(4):
            assert post(body)["ids"] == run["generated_ids"]
        for wrong in ({}, {"prompt": "?", "images": ["!"]}, {"prompt": "?", "colour": 3}, []):
            with pytest.raises(urllib.error.HTTPError) as raised:
                post(wrong)
            assert raised.value.code == 400
    finally:
        serve.shutdown()
