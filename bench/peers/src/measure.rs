//! What the Go side's `bench/measure` has, measured the same way.

use std::time::Instant;

unsafe extern "C" {
    fn malloc_trim(pad: usize) -> i32;
}

/// Resident bytes, after everything that can be given back has been.
pub fn resident() -> f64 {
    // SAFETY: glibc's malloc_trim may be called at any time from any thread.
    unsafe { malloc_trim(0) };
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split(' ').nth(1).and_then(|p| p.parse().ok()).unwrap_or(0.0);
    pages * 4096.0
}

pub fn quantile(all: &mut [f64], q: f64) -> f64 {
    all.sort_by(f64::total_cmp);
    all[((q * all.len() as f64) as usize).min(all.len() - 1)]
}

fn ns(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64
}

/// Calls `f` for 0..n one by one, the clock's own time taken off, `before` not timed.
pub fn each(n: usize, mut before: impl FnMut(usize), mut f: impl FnMut(usize)) -> Vec<f64> {
    let mut own: Vec<f64> = (0..1000).map(|_| ns(Instant::now())).collect();
    let off = quantile(&mut own, 0.5);
    (0..n)
        .map(|i| {
            before(i);
            let start = Instant::now();
            f(i);
            (ns(start) - off).max(0.0)
        })
        .collect()
}

/// The median over nine loops of what a call in a loop takes, in ns.
pub fn per_call(calls: usize, mut f: impl FnMut()) -> f64 {
    let mut all: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls {
                f();
            }
            ns(start) / calls as f64
        })
        .collect();
    quantile(&mut all, 0.5)
}

/// Takes the core's own caches away.
pub struct Flush(Vec<u64>);

impl Flush {
    pub fn new() -> Self {
        Flush(vec![1; (16 << 20) / 8])
    }

    pub fn run(&mut self) {
        for word in self.0.iter_mut().step_by(8) {
            *word = word.wrapping_add(1);
        }
        std::hint::black_box(&mut self.0);
    }
}
