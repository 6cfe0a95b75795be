/* What the parts of firebrick._native share. No header of torch: its C ABI is found with dlsym at import. */
#ifndef FIREBRICK_NATIVE_H
#define FIREBRICK_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Each part adds its types and functions to the module; 0 on success, -1 with an exception set. */
int fb_tensor_init(PyObject *module); /* tensor.c: layout of tensor objects, torch's C ABI */
int fb_frame_init(PyObject *module);  /* frame.c: the frame evaluation hook */
int fb_guards_init(PyObject *module); /* guards.c: guard plans */
int fb_host_init(PyObject *module);   /* host.c: executables */

#endif
