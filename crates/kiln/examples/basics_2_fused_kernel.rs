//! A graph as text becomes one fused kernel of machine code.

use kiln::ir::Graph;
use kiln::{DType, Device, Generator, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `n` is a symbolic size: the code serves every number of rows.
    let graph = Graph::parse(
        "graph(%0: f32[n, 512], %1: f32[n, 512]) {
           %2: f32[n, 512] = tanh %0
           %3: f32[n, 512] = mul %2, %1
           %4: f32[n, 512] = add %3, %0
           %5: f32[n, 1] = reduce_max %4 {axes=[1]}
           return %4, %5
         }",
    )?;
    let fused = kiln::compile_graph(&graph, &[])?;
    for step in fused.program().steps() {
        println!("kernel {}: {} bytes of code", step.label(), step.code().code_bytes());
    }

    let generator = Generator::new(1);
    for rows in [1, 64] {
        let x = generator.randn([rows, 512], DType::F32, Device::Cpu)?;
        let w = generator.randn([rows, 512], DType::F32, Device::Cpu)?;
        let out = fused.run(&[x.clone(), w.clone()])?;

        // The same, one op at a time.
        let y = (x.tanh()? * &w + &x)?;
        assert!(out[0].allclose(&y, 1e-5, 1e-6)?);
        assert!(out[1].allclose(&y.max_keepdim(1)?, 1e-5, 1e-6)?);
        println!("{rows} rows agree; largest {}", out[1].max(..)?.item::<f32>()?);
    }

    // Compiled for other strides: the first input arrives transposed.
    let x = Tensor::randn([512, 8], DType::F32, Device::Cpu)?.t()?;
    let w = Tensor::randn([8, 512], DType::F32, Device::Cpu)?;
    let graph = Graph::parse(&graph.to_string().replace("n,", "8,").replace("[n", "[8"))?;
    let strided = kiln::compile_graph(&graph, &[(&x).into(), (&w).into()])?;
    println!("transposed: {:?}", strided.run(&[x, w])?);
    Ok(())
}
