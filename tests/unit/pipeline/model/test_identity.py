"""The line by which a GPU's numbers are known."""

from types import SimpleNamespace

from pipeline.model.gpu import identity


def test_the_driver_is_read_from_its_own_file(tmp_path):
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: gcc 11\n")
    assert identity.driver_version(file) == "580.65.06"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    assert identity.driver_version(file) == "550.54.15"
    file.write_text("something else")
    assert identity.driver_version(file) == "unknown"
    assert identity.driver_version(tmp_path / "missing") == "unknown"


def test_a_slice_of_a_gpu_is_another_gpu(monkeypatch):
    def identity_with(multiprocessors: int) -> str:
        gpu = SimpleNamespace(name="H200", major=9, minor=0, multi_processor_count=multiprocessors)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
        return identity.gpu_identity()

    assert identity_with(132) != identity_with(56)
    assert "H200 (9, 0) multiprocessors 132" in identity_with(132)


def test_what_chooses_other_kernels_is_part_of_it(monkeypatch):
    gpu = SimpleNamespace(name="H100", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
    before = identity.gpu_identity()
    for name in (
        "TORCH_CUDNN_SDPA_DEPRIORITIZED",
        "NVIDIA_TF32_OVERRIDE",
        "CUBLASLT_WORKSPACE_SIZE",
        "CUBLAS_WORKSPACE_CONFIG",
    ):
        monkeypatch.setenv(name, "1")
        assert identity.gpu_identity().endswith(f" {name}=1")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/elsewhere")
    assert identity.gpu_identity() == before
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91900)
    assert "cudnn 91900" in identity.gpu_identity()


def test_cublas_is_unknown_where_there_is_none():
    assert identity.cublas_version(None) == "unknown"
    assert identity.cublas_version("999.0") == "unknown"
