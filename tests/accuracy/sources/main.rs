// Closures, trait objects, collections, formatting, panics that are caught, threads with channels.
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::mpsc::channel;

trait Shape { fn area(&self, depth: u32) -> f64; }
struct Circle(f64);
struct Group(Vec<Box<dyn Shape>>);
impl Shape for Circle { #[inline(never)] fn area(&self, _: u32) -> f64 { self.0 * self.0 * 3.14 } }
impl Shape for Group { #[inline(never)] fn area(&self, depth: u32) -> f64 { self.0.iter().map(|s| s.area(depth + 1)).sum() } }
fn group(depth: u32) -> Box<dyn Shape> {
    if depth == 0 { return Box::new(Circle(1.5)); }
    Box::new(Group((0..3).map(|_| group(depth - 1)).collect()))
}
#[inline(never)] fn fib(n: u64) -> u64 { if n < 2 { n } else { fib(n - 1) + fib(n - 2) } }
#[inline(never)] fn maps(n: u64) -> usize {
    let mut a = HashMap::new();
    let mut b = BTreeMap::new();
    for i in 0..400 { *a.entry((i * n) % 97).or_insert(0) += 1; b.insert(format!("{:x}", i ^ n), i); }
    let mut v: Vec<_> = b.into_iter().collect();
    v.sort_by(|x, y| y.1.cmp(&x.1));
    a.len() + v.len()
}
#[inline(never)] fn fails(depth: u32) -> u32 { if depth == 0 { panic!("the end") } else { fails(depth - 1) + 1 } }
#[inline(never)] fn texts(n: u64) -> usize {
    let mut s = String::new();
    for i in 0..100 { write!(s, "{} {:.3} ", i * n, i as f64 / 7.0).unwrap(); }
    s.split(' ').filter_map(|w| w.parse::<f64>().ok()).count()
}
fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let (sender, receiver) = channel();
    for k in 0..3u64 {
        let sender = sender.clone();
        std::thread::spawn(move || { let mut n = k; loop {
            n += 1;
            let got = match n % 5 {
                0 => group(5).area(0) as u64,
                1 => fib(18),
                2 => maps(n) as u64,
                3 => std::panic::catch_unwind(|| fails(20)).is_err() as u64,
                _ => texts(n) as u64,
            };
            if sender.send(got).is_err() { return; }
        }});
    }
    let mut sum = 0u64;
    for got in receiver { sum = sum.wrapping_add(got); std::hint::black_box(sum); }
}
