"""The example models: a model repository in Triton's layout, put together from what is installed.

Small files come with the package. Larger ones are made (``dense`` from a seed, ``silero_vad`` and
``ocr_detection`` from networks in packages) or copied (``magika``, ``ocr_recognition``), and checked against
a checksum.
"""

from tritonnb.model_zoo.materialize import materialize

__all__ = ["materialize"]
