//! The indexes of others, each driven through its public interface as its own benchmarks do.

use std::sync::Arc;
use std::thread::JoinHandle;

use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::*;
use tokio::sync::oneshot;

use crate::kvops::Record;

/// An index under test. What `prepare` makes of operations is not timed; `apply` is.
pub trait Engine {
    type Batch;
    type Query: Clone;
    fn prepare(&self, ops: Vec<Record>) -> Self::Batch;
    fn apply(&mut self, batch: Self::Batch);
    fn question(&self, locals: &[u64]) -> Self::Query;
    /// Answers and throws the answer away.
    fn ask(&mut self, q: &Self::Query);
    /// How many holders have how many leading blocks together.
    fn answer(&mut self, q: &Self::Query) -> (u64, u64);
}

pub struct Smg {
    tree: radix_tree::RadixTree,
    holders: Vec<radix_tree::HolderId>,
    scratch: radix_tree::OverlapScratch,
    out: Vec<radix_tree::Overlap>,
}

impl Smg {
    pub fn new(holders: usize) -> Self {
        let mut tree = radix_tree::RadixTree::new(radix_tree::Config::default());
        let holders = (0..holders).map(|h| tree.create_holder(&h.to_string())).collect();
        Smg {
            tree,
            holders,
            scratch: Default::default(),
            out: Vec::new(),
        }
    }
}

impl Engine for Smg {
    type Batch = Vec<Record>;
    type Query = Vec<u64>;

    fn prepare(&self, ops: Vec<Record>) -> Self::Batch {
        ops
    }

    fn apply(&mut self, batch: Self::Batch) {
        for op in &batch {
            match op {
                Record::Store { holder, parent, blocks } => {
                    self.tree
                        .store(self.holders[*holder], *parent, blocks)
                        .expect("a store is refused");
                }
                Record::Remove { holder, ids } => {
                    self.tree.remove(self.holders[*holder], ids);
                }
                Record::Query { .. } => {}
            }
        }
    }

    fn question(&self, locals: &[u64]) -> Vec<u64> {
        locals.to_vec()
    }

    fn ask(&mut self, q: &Vec<u64>) {
        self.tree.overlap(q, &mut self.scratch, &mut self.out);
        std::hint::black_box(&self.out);
    }

    fn answer(&mut self, q: &Vec<u64>) -> (u64, u64) {
        self.ask(q);
        (self.out.len() as u64, self.out.iter().map(|o| o.depth as u64).sum())
    }
}

fn event(op: Record, id: u64) -> Option<RouterEvent> {
    let (holder, data) = match op {
        Record::Store { holder, parent, blocks } => {
            let blocks = blocks
                .into_iter()
                .map(|(id, local)| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(id),
                    tokens_hash: LocalBlockHash(local),
                    mm_extra_info: None,
                })
                .collect();
            let parent_hash = parent.map(ExternalSequenceBlockHash);
            (
                holder,
                KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash,
                    start_position: None,
                    blocks,
                }),
            )
        }
        Record::Remove { holder, ids } => {
            let block_hashes = ids.into_iter().map(ExternalSequenceBlockHash).collect();
            (holder, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
        }
        Record::Query { .. } => return None,
    };
    Some(RouterEvent::new(
        holder as u64,
        KvCacheEvent {
            event_id: id,
            data,
            dp_rank: 0,
        },
    ))
}

fn events(ops: Vec<Record>) -> Vec<RouterEvent> {
    ops.into_iter()
        .enumerate()
        .filter_map(|(i, op)| event(op, i as u64))
        .collect()
}

fn sum(scores: &OverlapScores) -> (u64, u64) {
    (
        scores.scores.len() as u64,
        scores.scores.values().map(|&s| s as u64).sum(),
    )
}

fn sequence(locals: &[u64]) -> Vec<LocalBlockHash> {
    locals.iter().map(|&l| LocalBlockHash(l)).collect()
}

/// Dynamo's single-threaded tree.
pub struct DynamoTree(dynamo_kv_router::RadixTree);

impl DynamoTree {
    pub fn new() -> Self {
        DynamoTree(dynamo_kv_router::RadixTree::new())
    }
}

impl Engine for DynamoTree {
    type Batch = Vec<RouterEvent>;
    type Query = Vec<LocalBlockHash>;

    fn prepare(&self, ops: Vec<Record>) -> Self::Batch {
        events(ops)
    }

    fn apply(&mut self, batch: Self::Batch) {
        for e in batch {
            self.0.apply_event(e).expect("an event is refused");
        }
    }

    fn question(&self, locals: &[u64]) -> Self::Query {
        sequence(locals)
    }

    fn ask(&mut self, q: &Self::Query) {
        // The interface wants the question for itself, so copying it is part of asking.
        std::hint::black_box(self.0.find_matches(q.clone(), false));
    }

    fn answer(&mut self, q: &Self::Query) -> (u64, u64) {
        sum(&self.0.find_matches(q.clone(), false))
    }
}

/// A concurrent index of Dynamo's, written to by one thread of its own as its thread pool has them, read where it is asked.
pub struct DynamoShared<T: SyncIndexer> {
    index: Arc<T>,
    tasks: flume::Sender<WorkerTask>,
    writer: Option<JoinHandle<()>>,
}

impl<T: SyncIndexer> DynamoShared<T> {
    pub fn new(index: T) -> Self {
        let index = Arc::new(index);
        let (tasks, todo) = flume::unbounded();
        let own = index.clone();
        let writer = std::thread::spawn(move || own.worker(todo, None).expect("the writer failed"));
        DynamoShared {
            index,
            tasks,
            writer: Some(writer),
        }
    }
}

impl<T: SyncIndexer> Drop for DynamoShared<T> {
    fn drop(&mut self) {
        let _ = self.tasks.send(WorkerTask::Terminate);
        if let Some(w) = self.writer.take() {
            let _ = w.join();
        }
    }
}

impl<T: SyncIndexer> Engine for DynamoShared<T> {
    type Batch = Vec<RouterEvent>;
    type Query = Vec<LocalBlockHash>;

    fn prepare(&self, ops: Vec<Record>) -> Self::Batch {
        events(ops)
    }

    fn apply(&mut self, batch: Self::Batch) {
        for e in batch {
            self.tasks.send(WorkerTask::Event(e)).expect("the writer is gone");
        }
        let (done, wait) = oneshot::channel();
        self.tasks.send(WorkerTask::Flush(done)).expect("the writer is gone");
        wait.blocking_recv().expect("the writer is gone");
    }

    fn question(&self, locals: &[u64]) -> Self::Query {
        sequence(locals)
    }

    fn ask(&mut self, q: &Self::Query) {
        std::hint::black_box(self.index.find_matches(q, false));
    }

    fn answer(&mut self, q: &Self::Query) -> (u64, u64) {
        sum(&self.index.find_matches(q, false))
    }
}
