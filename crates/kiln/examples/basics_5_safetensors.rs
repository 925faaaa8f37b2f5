//! Checkpoints: saving tensors, loading them as views of the file, and what happens to a damaged one.

use kiln::{DType, Device, Generator, safetensors};
use std::collections::BTreeMap;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("kiln-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("model.safetensors");

    let generator = Generator::new(0);
    let weights = BTreeMap::from([
        ("linear.weight".to_owned(), generator.randn([4, 3], DType::Bf16, Device::Cpu)?),
        ("linear.bias".to_owned(), generator.randn([4], DType::F32, Device::Cpu)?),
    ]);
    safetensors::save(&path, &weights)?;

    let loaded = safetensors::load(&path, Device::Cpu)?;
    for (name, tensor) in &loaded {
        println!("{name}: {tensor:?}");
        assert_eq!(tensor.to_bytes()?, weights[name].to_bytes()?);
    }
    let x = generator.randn([2, 3], DType::Bf16, Device::Cpu)?;
    println!("{}", (x.linear(&loaded["linear.weight"], None)? + &loaded["linear.bias"])?);

    let mut bytes = std::fs::read(&path)?;
    bytes.truncate(bytes.len() - 1);
    println!("cut short: {}", safetensors::from_bytes(&bytes, Device::Cpu).unwrap_err());
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
