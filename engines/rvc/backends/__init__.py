"""Where the networks run: torch eager, OpenVINO or onnxruntime, behind one call, each checked against eager."""
