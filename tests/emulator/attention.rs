//! The shipped attention kernels on the emulator, against the f64 reference.

use std::time::{Duration, Instant};

use ferrotile::{Arch, Dtype, KernelParam, Mask, embedded_ptx, reference, tolerance};
use ndarray::Array4;
use ptx_emulator::{Device, LaunchShape, Module};
use variants::attention::{
    ATTENTION, AttentionArgs, AttentionConfig, AttentionKernel, AttentionStrides, ScoreMod, exact_from,
};

/// Sizes of one call.
#[derive(Debug, Clone, Copy)]
struct Case {
    config: &'static AttentionConfig,
    batch: usize,
    q_heads: usize,
    kv_heads: usize,
    q_len: usize,
    k_len: usize,
    head_dim: usize,
    mask: Mask,
    /// Elements from one row to the next beyond the head dimension, in all tensors.
    padding: usize,
}

const fn case(config: &'static AttentionConfig, q_len: usize, k_len: usize, head_dim: usize, mask: Mask) -> Case {
    Case { config, batch: 1, q_heads: 1, kv_heads: 1, q_len, k_len, head_dim, mask, padding: 0 }
}

/// Numbers between -1 and 1 that look random.
fn noise(seed: u64, len: usize) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
    })
}

fn encode(dtype: Dtype, value: f32) -> u16 {
    match dtype {
        Dtype::Bf16 => half::bf16::from_f32(value).to_bits(),
        _ => half::f16::from_f32(value).to_bits(),
    }
}

fn decode(dtype: Dtype, bits: u16) -> f64 {
    match dtype {
        Dtype::Bf16 => half::bf16::from_bits(bits).to_f64(),
        _ => half::f16::from_bits(bits).to_f64(),
    }
}

/// A tensor `[batch, heads, rows, dim]` in device memory, its rows `padding` elements apart.
struct Tensor {
    address: u64,
    strides: AttentionStrides,
    shape: [usize; 4],
    row: usize,
}

impl Tensor {
    fn new(device: &Device, shape: [usize; 4], padding: usize) -> Tensor {
        let row = shape[3] + padding;
        let strides = AttentionStrides {
            batch: (shape[1] * shape[2] * row) as i64,
            head: (shape[2] * row) as i64,
            row: row as i64,
        };
        let bytes = shape[0] * shape[1] * shape[2] * row * 2;
        Tensor { address: device.allocate(bytes as u64).unwrap(), strides, shape, row }
    }

    fn rows(&self) -> usize {
        self.shape[0] * self.shape[1] * self.shape[2]
    }

    /// Fills it with noise and returns what the elements are.
    fn fill(&self, device: &Device, dtype: Dtype, seed: u64) -> Array4<f64> {
        let bits: Vec<u16> = noise(seed, self.rows() * self.row).map(|value| encode(dtype, value)).collect();
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        device.write(self.address, &bytes).unwrap();
        self.array(dtype, &bits)
    }

    fn read(&self, device: &Device, dtype: Dtype) -> Array4<f64> {
        let mut bytes = vec![0; self.rows() * self.row * 2];
        device.read(self.address, &mut bytes).unwrap();
        let bits: Vec<u16> = bytes.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair)).collect();
        self.array(dtype, &bits)
    }

    fn array(&self, dtype: Dtype, bits: &[u16]) -> Array4<f64> {
        let [_, heads, rows, _] = self.shape;
        Array4::from_shape_fn(self.shape, |(b, h, s, d)| {
            decode(dtype, bits[((b * heads + h) * rows + s) * self.row + d])
        })
    }
}

/// The bytes of the kernel's parameter.
fn parameter(args: &AttentionArgs) -> Vec<u8> {
    let (address, bytes) = args.as_param();
    // SAFETY: a parameter is so many bytes without padding, which `args` keeps.
    unsafe { std::slice::from_raw_parts(address.cast(), bytes) }.to_vec()
}

/// Whether it takes few query rows and a second parameter, which is tested through the library.
fn decodes(config: &AttentionConfig) -> bool {
    matches!(config.kernel, AttentionKernel::Decode(_))
}

/// The configuration that is taken where none is named.
fn preferred(dtype: Dtype, head_dim: usize) -> &'static AttentionConfig {
    ATTENTION
        .iter()
        .find(|config| config.serves(Arch::Sm80, dtype, [head_dim; 2]) && !decodes(config))
        .expect("every type and width has one")
}

fn scalar(dtype: Dtype) -> &'static AttentionConfig {
    let is_scalar = |config: &&AttentionConfig| config.dtype == dtype && config.kernel == AttentionKernel::Scalar;
    ATTENTION.iter().find(is_scalar).expect("every type has one")
}

/// Runs the case, holds its output and log-sum-exp against the reference, and returns how long the kernel took.
fn check(module: &Module, arch: Arch, case: Case) -> Duration {
    let config = case.config;
    let dtype = config.dtype;
    let device = Device::new(arch);
    let Case { batch, q_heads, kv_heads, q_len, k_len, head_dim, mask, padding, .. } = case;
    let tensor = |heads, rows| Tensor::new(&device, [batch, heads, rows, head_dim], padding);
    let (q, k, v, o) =
        (tensor(q_heads, q_len), tensor(kv_heads, k_len), tensor(kv_heads, k_len), tensor(q_heads, q_len));
    let lse_len = batch * q_heads * q_len;
    let lse = device.allocate(lse_len as u64 * 4).unwrap();
    let (q_values, k_values, v_values) =
        (q.fill(&device, dtype, 1), k.fill(&device, dtype, 2), v.fill(&device, dtype, 3));
    let scale = 1.0 / (head_dim as f64).sqrt();
    let (first_key, last_key) = mask.key_offsets(q_len, k_len);
    let scale_log2 = (scale * std::f64::consts::LOG2_E) as f32;
    let aligned = u32::from(padding % 8 == 0);
    let args = AttentionArgs {
        q: q.address,
        k: k.address,
        v: v.address,
        o: o.address,
        lse,
        q_strides: q.strides,
        k_strides: k.strides,
        v_strides: v.strides,
        o_strides: o.strides,
        q_heads: q_heads as u32,
        heads_per_kv: (q_heads / kv_heads) as u32,
        q_len: q_len as u32,
        k_len: k_len as u32,
        head_dim: head_dim as u32,
        value_dim: head_dim as u32,
        first_key,
        last_key,
        scale_log2,
        exact_from: exact_from(scale_log2),
        inputs_aligned: aligned,
        output_aligned: aligned,
        ..AttentionArgs::default()
    };
    let shape = LaunchShape {
        grid: [config.tiles(batch * q_heads, q_len).unwrap(), 1, 1],
        block: [config.threads(), 1, 1],
        shared_bytes: config.smem().total_bytes(),
        ..LaunchShape::default()
    };
    let start = Instant::now();
    let report = module.launch(&device, config.name, shape, &[&parameter(&args)]);
    let report = report.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let elapsed = start.elapsed();
    assert!(report.total() > 0);

    let out = o.read(&device, dtype);
    let (q, k, v) = (q_values.view(), k_values.view(), v_values.view());
    let (expected, expected_lse) = reference::attention(q, k, v, mask, scale);
    let (obvious, obvious_lse) = reference::attention_rounded(q, k, v, mask, scale, dtype);
    let slice = |array: &Array4<f64>| array.iter().copied().collect::<Vec<_>>();
    let limit = tolerance::limit(dtype, tolerance::max_error(&slice(&obvious), &slice(&expected)));
    let error = tolerance::max_error(&slice(&out), &slice(&expected));
    assert!(error <= limit, "{case:?}: error {error:e}, limit {limit:e}");

    let mut bytes = vec![0; lse_len * 4];
    device.read(lse, &mut bytes).unwrap();
    let got: Vec<f32> = bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
    let expected: Vec<f64> = expected_lse.iter().copied().collect();
    let obvious: Vec<f64> = obvious_lse.iter().copied().collect();
    let limit = tolerance::lse_limit(scale * head_dim as f64, tolerance::max_error(&obvious, &expected));
    let error = tolerance::max_error(&got, &expected);
    assert!(error <= limit, "{case:?}: LSE error {error:e}, limit {limit:e}");
    elapsed
}

fn module(arch: Arch) -> Module {
    let ptx = embedded_ptx("attention", arch).expect("the test builds the PTX of every architecture");
    Module::parse(&ptx).unwrap_or_else(|error| panic!("{arch}: {error}"))
}

#[test]
fn every_configuration_of_every_architecture_gives_the_reference() {
    for arch in Arch::ALL {
        let module = module(arch);
        let is_plain = |config: &&AttentionConfig| {
            config.dtype.size_bytes() == 2 && config.score_mod == ScoreMod::None && !decodes(config)
        };
        for config in ATTENTION.iter().filter(|config| config.arch() == Arch::Sm80).filter(is_plain) {
            let head_dim = config.head_dim.min(128);
            check(&module, arch, case(config, 33, 47, head_dim, Mask::Causal));
        }
    }
}

#[test]
fn masks_and_sizes_at_the_edges_of_tiles() {
    let module = module(Arch::Sm80);
    for config in [preferred(Dtype::F16, 64), preferred(Dtype::Bf16, 64), scalar(Dtype::F16)] {
        for (q_len, k_len) in [(1, 1), (64, 64), (63, 65), (65, 129), (17, 0), (70, 5)] {
            for mask in [Mask::Full, Mask::Causal, Mask::Window { left: 9, right: 3 }] {
                check(&module, Arch::Sm80, case(config, q_len, k_len, 64, mask));
            }
        }
        for head_dim in [8, 40, 56] {
            check(&module, Arch::Sm80, case(config, 20, 30, head_dim, Mask::Full));
        }
    }
}

#[test]
fn heads_share_keys_and_rows_may_be_unaligned() {
    let module = module(Arch::Sm80);
    for config in [preferred(Dtype::F16, 64), preferred(Dtype::Bf16, 128), scalar(Dtype::Bf16)] {
        for padding in [3, 8] {
            let shape = case(config, 37, 41, 64, Mask::Causal);
            check(&module, Arch::Sm80, Case { batch: 2, q_heads: 4, kv_heads: 2, padding, ..shape });
        }
    }
}

/// `cargo test -p tests --release --test emulator -- --ignored --nocapture` prints how long the kernel takes.
#[test]
#[ignore = "a measurement"]
fn speed_of_eight_heads_of_512_rows() {
    let module = module(Arch::Sm80);
    let shape = case(preferred(Dtype::F16, 64), 512, 512, 64, Mask::Full);
    let elapsed = check(&module, Arch::Sm80, Case { q_heads: 8, kv_heads: 8, ..shape });
    println!("{}, 1x8x512x64 full: {:.2} s", shape.config.name, elapsed.as_secs_f64());
}
