"""The request for embeddings, as read from its JSON."""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.endpoints.openai.errors import OpenAiError
from tritonnb.endpoints.openai.fields import Fields
from tritonnb.endpoints.openai.request_fields import EMBEDDING, MOST_PROMPTS


@dataclass(frozen=True)
class EmbeddingRequest:
    """What a client asks for.

    Attributes
    ----------
    model : str
    texts : list of str
    base64 : bool
        Return each vector as Base64 of its 32-bit floating-point numbers, as the ``openai`` package asks for.
    dimensions : int or None
        The length that the client expects.
    """

    model: str
    texts: list[str]
    base64: bool
    dimensions: int | None


def read_embedding(body: bytes) -> EmbeddingRequest:
    """Read the body of ``POST /v1/embeddings``.

    Raises
    ------
    OpenAiError
        If it is invalid.
    """
    fields = Fields(body, EMBEDDING)
    value = fields.required("input", (str, list))
    texts = [value] if isinstance(value, str) else value
    if not 0 < len(texts) <= MOST_PROMPTS or not all(isinstance(text, str) for text in texts):
        raise OpenAiError(
            f"Invalid 'input': expected a string or an array of 1 to {MOST_PROMPTS} strings; tokens are not supported",
            "input",
            code="invalid_value",
        )
    encoding = fields.value("encoding_format", (str,), "float")
    if encoding not in ("float", "base64"):
        raise OpenAiError(f"Invalid 'encoding_format': expected float or base64, got {encoding}", "encoding_format")
    return EmbeddingRequest(
        fields.required("model", (str,)), texts, encoding == "base64", fields.integer("dimensions", 1, 2**31 - 1)
    )
