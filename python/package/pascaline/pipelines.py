"""A model in one line, in the manner of Hugging Face's ``pipeline``."""

from os import PathLike
from typing import Any, Dict, List, Optional, Union

from ._native import Device, Qwen3VL

__all__ = ["ImageTextToText", "pipeline"]


class ImageTextToText:
    """Pictures and text in, text out: the result of ``pipeline``."""

    def __init__(self, model: Qwen3VL) -> None:
        self.model = model

    def __call__(
        self, images: Any = None, text: Any = None, *, max_new_tokens: Optional[int] = None, **options: Any
    ) -> List[Dict[str, Any]]:
        """One ``{"input_text", "generated_text", "ids"}`` for each text.

        ``text`` is a str, a list of messages, or a list of either; ``images`` then is a list with the pictures of each. ``options``
        are those of ``Qwen3VL.generate``.
        """
        is_batch = isinstance(text, (list, tuple)) and not (text and isinstance(text[0], dict))
        texts = list(text) if is_batch else [text]
        pictures = list(images) if is_batch and images is not None else [images] * len(texts)
        if len(pictures) != len(texts):
            raise ValueError(f"{len(texts)} texts and pictures for {len(pictures)}")
        answers = []
        for prompt, shown in zip(texts, pictures):
            output = self.model.generate(prompt, shown, max_new_tokens=max_new_tokens, **options)
            answers.append({"input_text": prompt, "generated_text": output.text, "ids": output.ids})
        return answers


def pipeline(
    task: str = "image-text-to-text",
    model: Union[str, "PathLike[str]", Qwen3VL, None] = None,
    *,
    device: Union[str, Device, None] = None,
    dtype: Optional[str] = None,
) -> ImageTextToText:
    """Loads a model for a task: ``pipeline("image-text-to-text", model=path)(images="photo.jpg", text="What is this?")``.

    ``device`` and ``dtype`` are those of ``Qwen3VL.load``.
    """
    if task != "image-text-to-text":
        raise ValueError(f"the task is {task!r}; there is image-text-to-text")
    if model is None:
        raise ValueError("model= is a directory or a GGUF file")
    if not isinstance(model, Qwen3VL):
        model = Qwen3VL.load(model, device=device, dtype=dtype)
    return ImageTextToText(model)
