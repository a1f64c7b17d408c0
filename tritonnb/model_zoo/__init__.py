"""The example models: a model repository in Triton's layout, created from installed packages.

Small files are part of this package. Larger ones are generated (``dense`` from a seed, ``silero_vad`` and
``ocr_detection`` from networks in other packages) or copied (``magika``, ``ocr_recognition``), and their checksums are
verified.
"""

from tritonnb.model_zoo.materialize import materialize

__all__ = ["materialize"]
