"""Other people's engines as backends: ONNX Runtime, OpenVINO, TensorRT, TVM, CUDA graphs."""
