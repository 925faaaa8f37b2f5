//! Times products on request: each line of standard input is `m n k kind threads milliseconds`; the answer is the least
//! time of a call in µs. A kind is how the weights lie (`kn`, `nk` or `packed`), their dtype and that of the left operand,
//! as in `nk-bf16-f32`.

use kiln_cpu::gemm::{Gemm, Matrix, Operand, PackedB, Store};
use kiln_ir::DType;
use std::io::BufRead;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut held: Option<(String, Case)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [m, n, k, kind, threads, ms] = words[..] else { continue };
        let key = format!("{n} {k} {kind}");
        if held.as_ref().is_none_or(|(held, _)| *held != key) {
            held = Some((key, Case::new(n.parse()?, k.parse()?, kind)?));
        }
        if let Some((_, case)) = &held {
            println!("{}", case.time(m.parse()?, threads.parse()?, Duration::from_millis(ms.parse()?))?);
        }
    }
    Ok(())
}

struct Case {
    n: usize,
    k: usize,
    weights: Vec<u8>,
    left: DType,
    matrix: Matrix,
    packed: Option<PackedB>,
}

impl Case {
    fn new(n: usize, k: usize, kind: &str) -> Result<Case, Box<dyn std::error::Error>> {
        let mut words = kind.split('-');
        let layout = words.next().unwrap_or("nk");
        let dtype: DType = words.next().unwrap_or("f32").parse()?;
        let left: DType = words.next().unwrap_or("f32").parse()?;
        let weights: Vec<u8> = (0..n * k)
            .flat_map(|i| {
                let v = ((i as u32).wrapping_mul(2_654_435_761) >> 9) as f32 / (1 << 23) as f32 - 0.5;
                match dtype {
                    DType::Bf16 => half::bf16::from_f32(v).to_le_bytes().to_vec(),
                    DType::F16 => half::f16::from_f32(v).to_le_bytes().to_vec(),
                    _ => v.to_le_bytes().to_vec(),
                }
            })
            .collect();
        let (row_stride, column_stride) = if layout == "nk" { (1, k as isize) } else { (n as isize, 1) };
        let matrix = Matrix { data: weights.as_ptr(), dtype, row_stride, column_stride };
        let packed = if layout == "packed" {
            // SAFETY: the weights are K × N.
            Some(unsafe { PackedB::new(kiln_cpu::features::Isa::get(), k, n, DType::F32, &matrix)? })
        } else {
            None
        };
        Ok(Case { n, k, weights, left, matrix, packed })
    }

    fn time(&self, m: usize, threads: usize, budget: Duration) -> Result<f64, Box<dyn std::error::Error>> {
        assert!(!self.weights.is_empty());
        let a = vec![0u8; m * self.k * self.left.size_in_bits() / 8];
        let mut c = vec![0f32; m * self.n];
        let store = Store::new(c.as_mut_ptr().cast(), DType::F32, self.n as isize, 1)?;
        let left = Matrix { data: a.as_ptr(), dtype: self.left, row_stride: self.k as isize, column_stride: 1 };
        let right = self.packed.as_ref().map_or(Operand::Strided(self.matrix), Operand::Packed);
        let gemm = Gemm { threads, ..Gemm::new(m, self.n, self.k, DType::F32) };
        let (mut best, end) = (f64::INFINITY, Instant::now() + budget);
        while Instant::now() < end {
            let start = Instant::now();
            // SAFETY: the vectors cover the shapes and do not overlap.
            unsafe { gemm.run(Operand::Strided(left), right, &store)? };
            best = best.min(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(best)
    }
}
