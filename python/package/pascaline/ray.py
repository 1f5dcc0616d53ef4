"""Many pictures, many workers: batch inference with Ray Data, and a deployment with Ray Serve. Needs ``pip install "ray[data,serve]"``.

Each worker is an actor with a model of its own, on a GPU of its own or on a share of the CPU. The same code runs on this machine and
on a cluster: ``ray.init(address="auto")`` first, and a ``model`` path that every machine can read.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

import ray
import ray.data

from ._errors import Error
from ._native import Qwen3VL

__all__ = ["Answerer", "answer_folder", "answer_pictures", "application"]

_PICTURES = {".png", ".jpg", ".jpeg", ".webp"}


class Answerer:
    """An actor of Ray Data: rows with a ``path`` get the ``text`` of an answer, its number of ``tokens``, or the ``error`` of a
    picture; other rows are not affected."""

    def __init__(self, model: str, prompt: str, device: str, dtype: Optional[str], options: Dict[str, Any]) -> None:
        self.model = Qwen3VL.load(model, device=device, dtype=dtype)
        self.prompt, self.options = prompt, options

    def __call__(self, row: Dict[str, Any]) -> Dict[str, Any]:
        try:
            output = self.model.generate(self.prompt, [row["path"]], **self.options)
        except Error as error:
            return {**row, "text": "", "tokens": 0, "error": str(error)}
        return {**row, "text": output.text, "tokens": len(output.ids), "error": ""}


def answer_pictures(
    paths: Sequence[Union[str, Path]],
    model: Union[str, Path],
    prompt: str,
    *,
    workers: int = 2,
    device: Optional[str] = None,
    cpus_per_worker: float = 1,
    dtype: Optional[str] = None,
    **options: Any,
) -> ray.data.Dataset:
    """A dataset with a row ``{path, text, tokens, error}`` for each picture; it is computed when it is read.

    ``device="cuda:0"`` gives each worker a GPU (Ray numbers its own as the first); without one, each has ``cpus_per_worker``.
    ``options`` are those of ``Qwen3VL.generate``.
    """
    items = [{"path": str(Path(path).resolve())} for path in paths]
    if not items:
        raise ValueError("there are no pictures")
    on_gpu = (device or "cpu").startswith("cuda")
    arguments = (str(model), prompt, device or "cpu", dtype, options)
    return ray.data.from_items(items, override_num_blocks=min(len(items), 4 * workers)).map(
        Answerer,
        fn_constructor_args=arguments,
        concurrency=workers,
        num_gpus=1 if on_gpu else None,
        num_cpus=None if on_gpu else cpus_per_worker,
    )


def answer_folder(folder: Union[str, Path], model: Union[str, Path], prompt: str, **arguments: Any) -> ray.data.Dataset:
    """``answer_pictures`` for the PNG, JPEG and WebP files of a folder, in the order of their names."""
    files: List[Path] = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in _PICTURES)
    return answer_pictures(files, model, prompt, **arguments)


def application(
    model: Union[str, Path],
    *,
    replicas: int = 2,
    device: Optional[str] = None,
    cpus_per_replica: float = 1,
    dtype: Optional[str] = None,
) -> Any:
    """A Ray Serve application, for ``serve.run(application(path))``.

    It takes POSTs of JSON ``{"prompt": …, "images": [base64 of files], "max_new_tokens": …}`` and gives ``{"text", "ids", "statistics"}``.
    A replica answers one request at a time; Ray queues and spreads the others.
    """
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    on_gpu = (device or "cpu").startswith("cuda")
    resources = {"num_gpus": 1} if on_gpu else {"num_cpus": cpus_per_replica}

    class Replica:
        def __init__(self) -> None:
            self.model = Qwen3VL.load(str(model), device=device or "cpu", dtype=dtype)

        def answer(self, prompt: str, images: Sequence[bytes] = (), **options: Any) -> Dict[str, Any]:
            output = self.model.generate(prompt, list(images), **options)
            return {"text": output.text, "ids": output.ids, "statistics": output.statistics.as_dict()}

        async def __call__(self, request: Request) -> JSONResponse:
            import asyncio

            try:
                body = await request.json()
                images = [base64.b64decode(image, validate=True) for image in body.pop("images", [])]
                prompt = body.pop("prompt")
                return JSONResponse(await asyncio.to_thread(self.answer, prompt, images, **body))
            except (Error, KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
                return JSONResponse({"error": f"{type(error).__name__}: {error}"}, status_code=400)

    deployment = serve.deployment(
        Replica, num_replicas=replicas, ray_actor_options=resources, max_ongoing_requests=1, name="Qwen3VL"
    )
    return deployment.bind()
