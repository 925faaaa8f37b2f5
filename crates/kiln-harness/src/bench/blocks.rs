//! Products with weights as quantised blocks, beside the same product with f32 weights and beside a sum of the same bytes: what
//! memory alone takes. Weights are as many as do not fit into any cache, and take turns.

use super::Arguments;
use super::outputs::Outputs;
use super::turns::{self, Own};
use kiln::{BlockFormat, CompileOptions, CompiledGraph, DType, Device, Precision, Tensor};
use kiln_ir::TensorType;
use kiln_ir::build::{GraphBuilder, linear, linear_blocks};
use kiln_terminal::failure::Outcome;
use serde_json::{Value, json};
use std::cell::Cell;
use std::hint::black_box;

/// Bytes of all weights that take turns: several times a last level.
const BYTES: usize = 160 << 20;

type Failure = Box<dyn std::error::Error>;

/// A product and the weights that it takes in turn.
struct Product {
    program: CompiledGraph,
    x: Tensor,
    weights: Vec<Tensor>,
    turn: Cell<usize>,
}

impl Product {
    fn program(
        [m, k, n]: [usize; 3],
        format: Option<BlockFormat>,
        precision: Precision,
    ) -> Result<CompiledGraph, Failure> {
        let (dtype, row) = row(k, format)?;
        let mut b = GraphBuilder::new();
        let x = b.input(TensorType::fixed(DType::F32, &[m, k]))?;
        let w = b.input(TensorType::fixed(dtype, &[n, row]))?;
        let y = match format {
            Some(format) => linear_blocks(&mut b, &x, &w, format, None)?,
            None => linear(&mut b, &x, &w, None)?,
        };
        b.output(y);
        let mut options = CompileOptions::default();
        options.schedule.precision = precision;
        Ok(CompiledGraph::new(&b.finish(), &[], &options)?)
    }

    fn new([m, k, n]: [usize; 3], format: Option<BlockFormat>) -> Result<Product, Failure> {
        let program = Product::program([m, k, n], format, Precision::Highest)?;
        let (dtype, row) = row(k, format)?;
        let x = Tensor::from_vec((0..m * k).map(|i| (i % 13) as f32 / 8.0 - 0.75).collect(), [m, k], Device::Cpu)?;
        let size = dtype.size_in_bits() / 8;
        let weights = (0..(BYTES / (n * row * size)).max(1)).map(|number| match format {
            // Bytes below 64 make ordinary numbers of all halves.
            Some(_) => Tensor::from_vec(bytes(n * row, number), [n, row], Device::Cpu),
            None => {
                let floats = bytes(n * row, number).into_iter().map(|byte| f32::from(byte) / 32.0 - 1.0).collect();
                Tensor::from_vec(floats, [n, row], Device::Cpu)
            }
        });
        Ok(Product { program, x, weights: weights.collect::<Result<_, _>>()?, turn: Cell::new(0) })
    }

    /// The same product and weights at another precision.
    fn at(&self, precision: Precision, shape: [usize; 3], format: BlockFormat) -> Result<Product, Failure> {
        let program = Product::program(shape, Some(format), precision)?;
        Ok(Product { program, x: self.x.clone(), weights: self.weights.clone(), turn: Cell::new(0) })
    }

    fn next(&self) -> &Tensor {
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.weights.len());
        &self.weights[turn]
    }

    fn run(&self) -> kiln::Result<()> {
        self.program.run(&[self.x.clone(), self.next().clone()]).map(drop)
    }

    /// Adds up the words of the next weight.
    fn read(&self, threads: usize) {
        let Some(bytes) = self.next().buffer().host_bytes() else { return };
        let chunks = threads * 4;
        kiln_cpu::pool::run(chunks, threads, &|chunk| {
            let part = &bytes[bytes.len() * chunk / chunks..bytes.len() * (chunk + 1) / chunks];
            let words = part.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
            black_box(words.fold(0u64, u64::wrapping_add));
        });
    }
}

/// The type of weights, and elements of a row of them.
fn row(k: usize, format: Option<BlockFormat>) -> Result<(DType, usize), Failure> {
    Ok(match format {
        Some(format) => (DType::U8, format.row_bytes(k).ok_or("rows of broken blocks")?),
        None => (DType::F32, k),
    })
}

fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 9) as u8 & 63).collect()
}

/// Measures every format, few rows and many.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize]) -> Outcome {
    let mut lines = Vec::new();
    println!(
        "{:<24} {:>2} {:>9} {:>7} {:>9} {:>7} {:>7} {:>7}",
        "case", "T", "time", "GB/s", "read-sum", "f32", "high", "medium"
    );
    for &threads in threads {
        kiln_cpu::pool::set_threads(threads);
        for format in BlockFormat::ALL {
            for shape in [[1, 2048, 2048], [1, 4096, 4096], [1, 2048, 8192], [8, 2048, 2048], [128, 2048, 2048]] {
                let [m, k, n] = shape;
                let name = format!("{} {m}×{k}×{n}", format.name());
                if !name.contains(&arguments.filter) {
                    continue;
                }
                let (blocks, floats) = (Product::new(shape, Some(format))?, Product::new(shape, None)?);
                let high = blocks.at(Precision::High, shape, format)?;
                let medium = blocks.at(Precision::Medium, shape, format)?;
                let sum = || -> kiln::Result<()> {
                    blocks.read(threads);
                    Ok(())
                };
                let sides = [
                    Own::new(|| blocks.run()),
                    Own::new(sum),
                    Own::new(|| floats.run()),
                    Own::new(|| high.run()),
                    Own::new(|| medium.run()),
                ];
                let none = turns::Peer::setup(None, Value::Null, threads, &[]);
                let [own, read, float, high, medium] = turns::take(arguments, sides, none)?.0.map(|side| side.min);
                let moved = blocks.weights[0].elements() as f64;
                println!(
                    "{name:<24} {threads:>2} {:>7.1}µs {:>7.1} {:>9.2} {:>7.2} {:>7.2} {:>7.2}",
                    own * 1e6,
                    moved / own / 1e9,
                    read / own,
                    float / own,
                    float / high,
                    float / medium
                );
                lines.push(json!({
                    "what": "blocks", "case": name, "threads": threads, "seconds": own,
                    "bytes_per_second": moved / own, "read_sum": read / own, "f32": float / own,
                    "high": float / high, "medium": float / medium,
                }));
            }
        }
    }
    println!(
        "read-sum: what adding up the same bytes takes, over the product's time; f32: the product with f32 weights; high, medium: \
         that over the product's time at these precisions."
    );
    outputs.write_lines(lines)
}
