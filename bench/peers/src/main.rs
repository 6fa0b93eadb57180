//! `peers INDEX FILE`: plays an operation file to an index and prints `value NAME NUMBER` lines, as `peerbench` does for
//! ours.

mod engines;
mod kvops;
mod measure;

use std::fs::File;
use std::process::exit;
use std::time::Instant;

use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer};
use engines::{DynamoShared, DynamoTree, Engine, Smg};
use kvops::{Reader, Record};
use measure::{Flush, each, per_call, quantile, resident};

/// Operations made ready before the clock starts.
const CHUNK: usize = 4096;
/// Jumps of Dynamo's positional index, as its documentation has it.
const JUMP: usize = 32;

fn value(name: &str, v: f64) {
    println!("value {name} {v}");
}

/// Groups of questions, as `peerbench` writes them.
const GROUPS: [&str; 4] = ["one", "cell", "deep", "miss"];

fn run<E: Engine>(mut reader: Reader<File>, make: impl FnOnce(usize) -> E) -> std::io::Result<()> {
    let before = resident();
    let mut engine = make(reader.holders);
    let (mut held, mut told, mut seconds) = (0i64, 0u64, 0.0);
    let mut groups: Vec<Vec<E::Query>> = GROUPS.iter().map(|_| Vec::new()).collect();
    let mut ops = Vec::with_capacity(CHUNK);
    let mut last = (usize::MAX, 0);
    let mut play = |ops: &mut Vec<Record>, engine: &mut E| {
        let batch = engine.prepare(std::mem::replace(ops, Vec::with_capacity(CHUNK)));
        let start = Instant::now();
        engine.apply(batch);
        seconds += start.elapsed().as_secs_f64();
    };
    let mut bytes = None;
    while let Some(record) = reader.next()? {
        match &record {
            Record::Store { holder, blocks, .. } => {
                told += blocks.len() as u64;
                // A batch that is sent twice follows itself and adds nothing.
                if last != (*holder, blocks[0].0) {
                    held += blocks.len() as i64;
                }
                last = (*holder, blocks[0].0);
            }
            Record::Remove { ids, .. } => {
                told += ids.len() as u64;
                held -= ids.len() as i64;
            }
            Record::Query { group, locals } => {
                if bytes.is_none() {
                    play(&mut ops, &mut engine);
                    ops = Vec::new();
                    bytes = Some(resident() - before);
                }
                if let Some(g) = groups.get_mut(*group as usize) {
                    g.push(engine.question(locals));
                }
                continue;
            }
        }
        ops.push(record);
        if ops.len() == CHUNK {
            play(&mut ops, &mut engine);
        }
    }
    value("held", held as f64);
    value("bytes", bytes.unwrap_or(0.0) / held as f64);
    value("write", told as f64 / seconds / 1e6);

    let [one, cell, deep, miss] = &groups[..] else {
        unreachable!()
    };
    let mut ask = |all: &[E::Query]| quantile(&mut each(all.len(), |_| {}, |i| engine.ask(&all[i])), 0.5);
    value("one", ask(one));
    value("miss", ask(miss));
    let mut cold = Flush::new();
    let engine = std::cell::RefCell::new(engine);
    let mut all = each(
        cell.len() - 1,
        |i| {
            cold.run();
            for _ in 0..3 {
                let start = Instant::now();
                engine.borrow_mut().ask(&cell[0]);
                std::hint::black_box(start.elapsed());
            }
            // The question has just come in: it is in the caches.
            std::hint::black_box(cell[i + 1].clone());
        },
        |i| engine.borrow_mut().ask(&cell[i + 1]),
    );
    let mut engine = engine.into_inner();
    value("cell-p50", quantile(&mut all, 0.5));
    value("cell-p99", quantile(&mut all, 0.99));
    value("deep", per_call(500, || engine.ask(&deep[0])));
    for (g, name) in groups.iter().zip(GROUPS) {
        let (mut holders, mut blocks) = (0, 0);
        for q in g {
            let (h, b) = engine.answer(q);
            holders += h;
            blocks += b;
        }
        value(&format!("{name}-holders"), holders as f64);
        value(&format!("{name}-blocks"), blocks as f64);
    }
    Ok(())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, index, path] = &args[..] else {
        eprintln!("usage: peers smg|dynamo-tree|dynamo-concurrent|dynamo-positional FILE");
        exit(2);
    };
    let result = File::open(path)
        .and_then(Reader::new)
        .and_then(|r| match index.as_str() {
            "smg" => run(r, Smg::new),
            "dynamo-tree" => run(r, |_| DynamoTree::new()),
            "dynamo-concurrent" => run(r, |_| DynamoShared::new(ConcurrentRadixTreeCompressed::new())),
            "dynamo-positional" => run(r, |_| DynamoShared::new(PositionalIndexer::new(JUMP))),
            other => {
                eprintln!("no index {other:?}");
                exit(2);
            }
        });
    if let Err(e) = result {
        eprintln!("{path}: {e}");
        exit(1);
    }
}
