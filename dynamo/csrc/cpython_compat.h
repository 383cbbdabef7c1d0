/* What differs between CPython 3.11, 3.12 and 3.13 for a frame-evaluation hook; the only place with version tests. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#if PY_VERSION_HEX >= 0x030D0000
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#define FRAME_SET_CODE(f, c) ((f)->f_executable = (PyObject *)(c))
#define FRAME_FUNCTION(f) ((PyFunctionObject *)(f)->f_funcobj)
#define FRAME_AT_START(f) ((f)->instr_ptr == _PyCode_CODE(FRAME_CODE(f)))
#define FRAME_RESTART(f) ((f)->instr_ptr = _PyCode_CODE(FRAME_CODE(f)))
#elif PY_VERSION_HEX >= 0x030C0000
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_SET_CODE(f, c) ((f)->f_code = (c))
#define FRAME_FUNCTION(f) ((PyFunctionObject *)(f)->f_funcobj)
#define FRAME_AT_START(f) ((f)->prev_instr == _PyCode_CODE(FRAME_CODE(f)) - 1)
#define FRAME_RESTART(f) ((f)->prev_instr = _PyCode_CODE(FRAME_CODE(f)) - 1)
#else
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_SET_CODE(f, c) ((f)->f_code = (c))
#define FRAME_FUNCTION(f) ((f)->f_func)
#define FRAME_AT_START(f) ((f)->prev_instr == _PyCode_CODE(FRAME_CODE(f)) - 1)
#define FRAME_RESTART(f) ((f)->prev_instr = _PyCode_CODE(FRAME_CODE(f)) - 1)
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define CODE_FRAME_SIZE(c) ((c)->co_framesize)
#define EXTRA_INDEX PyUnstable_Eval_RequestCodeExtraIndex
#define EXTRA_GET PyUnstable_Code_GetExtra
#define EXTRA_SET PyUnstable_Code_SetExtra
#else
#define CODE_FRAME_SIZE(c) ((c)->co_nlocalsplus + (c)->co_stacksize + FRAME_SPECIALS_SIZE)
#define EXTRA_INDEX _PyEval_RequestCodeExtraIndex
#define EXTRA_GET _PyCode_GetExtra
#define EXTRA_SET _PyCode_SetExtra
#endif
