"""NVIDIA Riva's speech synthesis over gRPC, as a translation: its messages in the words of this service."""
