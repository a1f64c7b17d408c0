"""Triton's C backends, unmodified: shared libraries ``libtriton_<name>.so`` that implement *tritonbackend.h*.

A backend imports the functions of the server from ``libtritonserver.so``. Here this is a small C++ library (``shim/``)
with the same name, which is loaded first. A backend's calls about its requests stay in C++, without Python's
interpreter lock; Python prepares the requests of a batch, and reads the results.
"""
