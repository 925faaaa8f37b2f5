//! A small builder of loop kernels and a runner that compares every target with the reference executor.
#![allow(dead_code)]

use kiln_cpu::features::Isa;
use kiln_cpu::loops::{Build, LoopKernel};
use kiln_cpu::lower::Options;
use kiln_cpu::saved::Piece;
use kiln_ir::codec::{from_bytes, to_bytes};
use kiln_ir::*;
use kiln_kernels::kernel::*;
use kiln_kernels::reference::run_kernel;
use kiln_runtime::{LaunchError, RawBuffer};

/// A kernel being built.
pub struct K {
    pub buffers: Vec<BufferArg>,
    pub sizes: Vec<Symbol>,
    pub body: LoopBody,
    next: u32,
}

pub fn dim(text: &str) -> Dim {
    Dim::parse(text).unwrap()
}

impl K {
    pub fn new(grid: &[(&str, &str)], row: &[(&str, &str)]) -> K {
        let axes = |list: &[(&str, &str)]| {
            list.iter().map(|(v, s)| Axis { var: Symbol::new(v).unwrap(), size: dim(s) }).collect::<Vec<_>>()
        };
        let mut k = K {
            buffers: vec![],
            sizes: vec![],
            body: LoopBody { grid: axes(grid), row: axes(row), stages: vec![], temps: vec![] },
            next: 0,
        };
        k.stage(Domain::Point);
        k
    }

    pub fn size(&mut self, name: &str) {
        self.sizes.push(Symbol::new(name).unwrap());
    }

    pub fn stage(&mut self, domain: Domain) {
        self.body.stages.push(Stage { domain, insts: vec![], reductions: vec![] });
    }

    pub fn buffer(&mut self, dtype: DType, access: Access) -> usize {
        self.buffers.push(BufferArg { dtype, access });
        self.buffers.len() - 1
    }

    pub fn input(&mut self, dtype: DType) -> usize {
        self.buffer(dtype, Access::Read)
    }

    pub fn output(&mut self, dtype: DType) -> usize {
        self.buffer(dtype, Access::Write)
    }

    pub fn push(&mut self, dtype: DType, kind: InstKind) -> ValueId {
        let id = ValueId(self.next);
        self.next += 1;
        self.body.stages.last_mut().unwrap().insts.push(Inst { id, dtype, kind });
        id
    }

    pub fn place(&self, buffer: usize, offset: &str) -> Place {
        Place { buffer, offset: dim(offset), indirect: vec![] }
    }

    pub fn load(&mut self, buffer: usize, offset: &str) -> ValueId {
        let dtype = self.buffers[buffer].dtype.compute_type();
        let place = self.place(buffer, offset);
        self.push(dtype, InstKind::Load { place, guard: None })
    }

    pub fn store(&mut self, buffer: usize, offset: &str, value: ValueId) {
        let dtype = self.buffers[buffer].dtype.compute_type();
        let place = self.place(buffer, offset);
        self.push(dtype, InstKind::Store { place, value, guard: None });
    }

    pub fn f32(&mut self, value: f64) -> ValueId {
        self.push(DType::F32, InstKind::Const(Scalar::float(DType::F32, value)))
    }

    pub fn unary(&mut self, op: UnaryOp, dtype: DType, a: ValueId) -> ValueId {
        self.push(dtype, InstKind::Unary(op, a))
    }

    pub fn binary(&mut self, op: BinaryOp, dtype: DType, a: ValueId, b: ValueId) -> ValueId {
        self.push(dtype, InstKind::Binary(op, a, b))
    }

    pub fn reduce(&mut self, kind: ReductionKind, dtype: DType, value: ValueId) -> ValueId {
        let result = ValueId(self.next);
        self.next += 1;
        let stage = self.body.stages.last_mut().unwrap();
        stage.reductions.push(Reduction { kind, value, dtype, result });
        result
    }

    pub fn kernel(&self) -> Kernel {
        let mut body = self.body.clone();
        body.stages.retain(|s| !s.insts.is_empty() || !s.reductions.is_empty());
        Kernel { buffers: self.buffers.clone(), sizes: self.sizes.clone(), body: KernelBody::Loop(body) }
    }
}

/// A seeded stream of numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A tensor of plausible values of a dtype, with special ones among them if requested.
pub fn tensor(dtype: DType, elements: usize, seed: u64, special: bool) -> HostTensor {
    let mut r = Random(seed);
    let mut bytes = vec![0u8; dtype.bytes_for(elements).unwrap()];
    const SPECIAL: [f64; 12] =
        [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0, -1.0, 1e-40, -1e-40, 3e38, 1e-300, 2147483648.0];
    for i in 0..elements {
        let value = if special && r.next().is_multiple_of(5) {
            SPECIAL[(r.next() % 12) as usize]
        } else {
            (r.unit() - 0.5) * 8.0
        };
        let int = r.next() as i64;
        let bits = match dtype.compute_type() {
            DType::F32 => u64::from((value as f32).to_bits()),
            DType::F64 => value.to_bits(),
            DType::Bool => (int as u64) & 1,
            DType::I32 if special => int as u32 as u64,
            DType::I64 if special => int as u64,
            DType::I32 => (int % 100) as i32 as u32 as u64,
            _ => (int % 100) as u64,
        };
        // SAFETY: the buffer has room for every element.
        unsafe { kiln_cpu::element::write(dtype, bytes.as_mut_ptr(), i as i64, bits) };
    }
    HostTensor::from_bytes(dtype, &[elements], bytes).unwrap()
}

pub fn zeros(dtype: DType, elements: usize) -> HostTensor {
    HostTensor::from_bytes(dtype, &[elements], vec![0xA5; dtype.bytes_for(elements).unwrap()]).unwrap()
}

/// Largest allowed difference.
#[derive(Clone, Copy)]
pub struct Within {
    pub relative: f64,
    pub absolute: f64,
}

pub const EXACT: Within = Within { relative: 0.0, absolute: 0.0 };
pub const CLOSE: Within = Within { relative: 2e-6, absolute: 1e-6 };

pub fn element(t: &HostTensor, i: usize) -> f64 {
    // SAFETY: i is below the number of elements.
    let bits = unsafe { kiln_cpu::element::read(t.dtype(), t.bytes().as_ptr(), i as i64) };
    match t.dtype().compute_type() {
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::F64 => f64::from_bits(bits),
        DType::I32 => (bits as i32).into(),
        _ => bits as i64 as f64,
    }
}

/// Memory with unreadable pages right before and after, so that any access outside faults.
pub struct Guarded {
    map: *mut u8,
    len: usize,
    pub at: *mut u8,
}

impl Guarded {
    /// The bytes end (or, if `low`, start) at the edge of the readable part.
    pub fn new(bytes: &[u8], low: bool) -> Guarded {
        let page = 4096;
        let inner = bytes.len().div_ceil(page).max(1) * page;
        let len = inner + 2 * page;
        // SAFETY: a fresh private mapping.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        } as *mut u8;
        assert!(!map.is_null());
        // SAFETY: all inside the mapping.
        unsafe {
            libc::mprotect(map.cast(), page, libc::PROT_NONE);
            libc::mprotect(map.add(page + inner).cast(), page, libc::PROT_NONE);
            let at = if low { map.add(page) } else { map.add(page + inner - bytes.len()) };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            Guarded { map, len, at }
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.map.cast(), self.len) };
    }
}

/// Runs a kernel on one target; outputs replace the tensors.
pub fn run_on(
    kernel: &Kernel,
    isa: Isa,
    tensors: &mut [HostTensor],
    sizes: &[i64],
    options: Options,
) -> Result<(), LaunchError> {
    let KernelBody::Loop(body) = &kernel.body else { panic!("a loop kernel") };
    let compiled = LoopKernel::compile(kernel, body, isa, options).unwrap_or_else(|e| panic!("{e}"));
    // What another process would read from disk is the same code.
    let ready: Vec<Piece> = compiled.to_piece().into_iter().collect();
    let ready: Vec<Piece> = from_bytes(&to_bytes(&ready)).unwrap_or_else(|e| panic!("{e}"));
    let restored = Build { isa, options, ready: &ready }.compile(kernel, body).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(restored.to_piece(), compiled.to_piece());
    assert_eq!(restored.code(), compiled.code());
    let compiled = restored;
    let memory: Vec<Guarded> = tensors.iter().map(|t| Guarded::new(t.bytes(), false)).collect();
    let raw: Vec<RawBuffer> =
        memory.iter().zip(tensors.iter()).map(|(m, t)| RawBuffer { ptr: m.at, bytes: t.bytes().len() }).collect();
    // SAFETY: the buffers are those the reference ran on within bounds.
    let result = unsafe { compiled.launch(&raw, sizes) };
    for (m, t) in memory.iter().zip(tensors) {
        let len = t.bytes().len();
        // SAFETY: the guarded memory is as long as the tensor.
        t.bytes_mut().copy_from_slice(unsafe { std::slice::from_raw_parts(m.at, len) });
    }
    result
}

/// Compares every target with the reference.
pub fn check(kernel: &Kernel, tensors: &[HostTensor], sizes: &[i64], tolerance: Within) {
    let mut expected = tensors.to_vec();
    run_kernel(kernel, &mut expected, sizes).unwrap_or_else(|e| panic!("reference: {e}\n{kernel}"));
    // What any target has, and what this one has.
    let targets =
        Isa::available().flat_map(|isa| [Options::default(), Options::default().on(isa)].map(|options| (isa, options)));
    for (isa, options) in targets {
        let mut got = tensors.to_vec();
        run_on(kernel, isa, &mut got, sizes, options).unwrap_or_else(|e| panic!("{isa:?}: {e}"));
        for (b, (want, have)) in expected.iter().zip(&got).enumerate() {
            for i in 0..want.shape().iter().product() {
                let (x, y) = (element(want, i), element(have, i));
                let same = x == y || x.is_nan() && y.is_nan();
                let near = (x - y).abs() <= tolerance.absolute + tolerance.relative * x.abs();
                assert!(
                    same || near,
                    "{isa:?}: buffer {b} ({}), element {i}: want {x:e}, got {y:e}\nsizes {sizes:?}\n{kernel}",
                    want.dtype()
                );
            }
        }
    }
}
