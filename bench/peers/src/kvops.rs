//! Reads operation files; `bench/kvops` has the format and writes them.

use std::io::{self, BufReader, Read};

pub enum Record {
    Store {
        holder: usize,
        parent: Option<u64>,
        blocks: Vec<(u64, u64)>,
    },
    Remove {
        holder: usize,
        ids: Vec<u64>,
    },
    Query {
        group: u8,
        locals: Vec<u64>,
    },
}

pub struct Reader<R> {
    input: BufReader<R>,
    pub holders: usize,
    buf: Vec<u8>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(word)
}

impl<R: Read> Reader<R> {
    pub fn new(input: R) -> io::Result<Self> {
        let mut r = Reader {
            input: BufReader::with_capacity(1 << 20, input),
            holders: 0,
            buf: Vec::new(),
        };
        let head = r.take(12)?;
        if &head[..8] != b"kvops/1\n" {
            return Err(bad("not an operation file"));
        }
        r.holders = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        if r.holders < 1 || r.holders > 1 << 20 {
            return Err(bad("too few or too many holders"));
        }
        Ok(r)
    }

    fn take(&mut self, n: usize) -> io::Result<Vec<u8>> {
        self.buf.resize(n, 0);
        self.input.read_exact(&mut self.buf)?;
        Ok(std::mem::take(&mut self.buf))
    }

    /// The next record; `None` at the end.
    pub fn next(&mut self) -> io::Result<Option<Record>> {
        let head = self.take(8)?;
        let n = u16::from_le_bytes([head[2], head[3]]) as usize;
        let holder = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if head[0] == 0 {
            return Ok(None);
        }
        if n == 0 || holder >= self.holders {
            return Err(bad("a record of no blocks, or of an unknown holder"));
        }
        let words = |b: &[u8], from: usize| (0..n).map(|i| u64_at(b, from + 8 * i)).collect::<Vec<_>>();
        match head[0] {
            1 => {
                let b = self.take(8 + 16 * n)?;
                let blocks = (0..n)
                    .map(|i| (u64_at(&b, 8 + 16 * i), u64_at(&b, 16 + 16 * i)))
                    .collect();
                let parent = if head[1] == 1 { None } else { Some(u64_at(&b, 0)) };
                Ok(Some(Record::Store { holder, parent, blocks }))
            }
            2 => Ok(Some(Record::Remove {
                holder,
                ids: words(&self.take(8 * n)?, 0),
            })),
            3 => Ok(Some(Record::Query {
                group: head[1],
                locals: words(&self.take(8 * n)?, 0),
            })),
            _ => Err(bad("unknown kind of record")),
        }
    }
}
