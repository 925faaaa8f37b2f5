//! Safetensors files: what is written is read back; what is damaged is an error.

use kiln::safetensors::{self, FormatError};
use kiln::{DType, Device, Error, Tensor};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A folder that goes away at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn some_tensors() -> BTreeMap<String, Tensor> {
    let mut tensors = BTreeMap::new();
    let dtypes = DType::ALL.into_iter().filter(|&d| d != DType::I4);
    for dtype in dtypes {
        let count = Tensor::arange(6, DType::F32, Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        tensors.insert(format!("block.{dtype}"), count.reshape([2, 3]).unwrap());
    }
    tensors.insert("empty".into(), Tensor::zeros([0, 4], DType::F32, Device::Cpu).unwrap());
    tensors.insert("scalar \"quoted\" é\n".into(), Tensor::scalar(2.5, DType::F64, Device::Cpu).unwrap());
    tensors.insert("view".into(), Tensor::arange(4, DType::I64, Device::Cpu).unwrap().flip(0).unwrap());
    tensors
}

#[test]
fn what_is_saved_is_loaded() {
    let folder = Folder::new("roundtrip");
    let path = folder.0.join("model.safetensors");
    let tensors = some_tensors();
    let metadata = BTreeMap::from([("format".to_owned(), "kiln \\ \u{1}".to_owned())]);
    safetensors::save_checkpoint(&path, &tensors, &metadata).unwrap();
    let loaded = safetensors::load_checkpoint(&path, Device::Cpu).unwrap();
    let copied = safetensors::from_bytes(&std::fs::read(&path).unwrap(), Device::Cpu).unwrap();
    for checkpoint in [&loaded, &copied] {
        assert_eq!(checkpoint.metadata, metadata);
        assert!(checkpoint.tensors.keys().eq(tensors.keys()));
        for (name, tensor) in &tensors {
            let got = &checkpoint.tensors[name];
            assert_eq!((got.dtype(), got.shape()), (tensor.dtype(), tensor.shape()), "{name}");
            assert_eq!(got.to_bytes().unwrap(), tensor.to_bytes().unwrap(), "{name}");
        }
    }
    assert!(!loaded.tensors["block.f32"].buffer().is_writable(), "loaded tensors are views of the file");
    let sum = (&loaded.tensors["block.f32"] + 1.0).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [1., 2., 3., 4., 5., 6.]);
    assert!(std::fs::read_dir(&folder.0).unwrap().count() == 1, "no temporary file is left");
}

#[test]
fn tensors_outlive_the_handle_of_the_file() {
    let folder = Folder::new("lifetime");
    let path = folder.0.join("model.safetensors");
    safetensors::save(&path, [("x", &Tensor::ones([1000], DType::F32, Device::Cpu).unwrap())]).unwrap();
    let x = safetensors::load(&path, Device::Cpu).unwrap().remove("x").unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(x.sum(..).unwrap().item::<f32>().unwrap(), 1000.0);
}

fn file(header: &str, elements: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(elements);
    bytes
}

fn cause(bytes: &[u8]) -> FormatError {
    match safetensors::from_bytes(bytes, Device::Cpu) {
        Err(Error::Safetensors { cause, .. }) => *cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lies_are_found_out() {
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!("{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
    };
    let good = entry("F32", "[2]", "[0,8]");
    assert!(safetensors::from_bytes(&file(&good, &[0; 8]), Device::Cpu).is_ok());
    assert!(matches!(cause(&[0; 7]), FormatError::TooShort { bytes: 7 }));
    assert!(matches!(cause(&[255; 20]), FormatError::HeaderLength { .. }));
    assert!(matches!(cause(&file("[]", &[])), FormatError::Json { .. }));
    assert!(matches!(cause(&file("{\"x\":", &[])), FormatError::Json { .. }));
    assert!(matches!(cause(&file(&"[".repeat(1000), &[])), FormatError::Json { .. }));
    assert!(matches!(cause(&file(&entry("F33", "[2]", "[0,8]"), &[0; 8])), FormatError::UnknownDType { .. }));
    assert!(matches!(cause(&file(&entry("F32", "[2]", "[0,9]"), &[0; 8])), FormatError::BadOffsets { .. }));
    assert!(matches!(cause(&file(&entry("F32", "[2]", "[8,0]"), &[0; 8])), FormatError::BadOffsets { .. }));
    assert!(matches!(cause(&file(&entry("F32", "[3]", "[0,8]"), &[0; 8])), FormatError::WrongSize { .. }));
    let large = format!("[{0},{0}]", u64::MAX / 2);
    assert!(matches!(cause(&file(&entry("F32", &large, "[0,8]"), &[0; 8])), FormatError::WrongSize { .. }));
    assert!(matches!(cause(&file(&entry("F32", "[1]", "[4,8]"), &[0; 8])), FormatError::Gap { .. }));
    assert!(matches!(cause(&file(&good, &[0; 9])), FormatError::Gap { .. }));
    assert!(matches!(cause(&file(&entry("F32", "[-2]", "[0,8]"), &[0; 8])), FormatError::Json { .. }));
    assert!(matches!(cause(&file(&entry("F32", "[2.0]", "[0,8]"), &[0; 8])), FormatError::Json { .. }));
    assert!(matches!(cause(&file("{\"x\":{}}", &[])), FormatError::BadEntry { .. }));
    let missing = safetensors::load("/nowhere/model.safetensors", Device::Cpu).unwrap_err().to_string();
    assert!(missing.starts_with("/nowhere/model.safetensors: "), "{missing}");
}

#[test]
fn damaged_files_never_panic() {
    let folder = Folder::new("damage");
    let path = folder.0.join("model.safetensors");
    safetensors::save(&path, &some_tensors()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        assert!(safetensors::from_bytes(&whole[..length], Device::Cpu).is_err(), "{length} of {} bytes", whole.len());
    }
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let (mut read, mut refused) = (0, 0);
    for bit in 0..header * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // A second change somewhere makes for stranger files than one.
        if bit % 3 == 0 {
            bytes[random() % header] = random() as u8;
        }
        match safetensors::from_bytes(&bytes, Device::Cpu) {
            Ok(checkpoint) => {
                read += 1;
                for tensor in checkpoint.tensors.values() {
                    tensor.to_bytes().unwrap();
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 0 && refused > read, "{read} read, {refused} refused");
}
