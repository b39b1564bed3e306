//! A watch on a zone: which words are read, which are stored to, and how to take stores back.
//!
//! The crash explorer tries thousands of contents of one piece of memory a second. It neither copies the memory nor
//! looks at what cannot matter: it puts in the lines that a power cut may have changed, lets a volume recover, learns
//! which words of those lines the recovery looked at, and puts back what was there before.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::LINE;
use crate::mapping::Window;

/// Bytes of a line.
pub type Line = [u8; LINE as usize];

/// Bytes of a word: what reads and stores are told apart by.
pub(crate) const WORD: u64 = 8;
/// Words of a line.
const WORDS: u64 = LINE / WORD;

/// Some words of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineWords {
    /// Its number.
    pub line: u32,
    /// The words, bit 0 being the first.
    pub words: u8,
}

/// What bytes may be asked: an answer that follows from these and two words alone.
pub type Question = fn(bytes: &[u8], about: [u64; 2]) -> u64;

/// One look at a watched zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// At words that were read.
    Words(LineWords),
    /// At no more of some bytes than what they answer to a question; see [`Watch::answer`] and [`Watch::words`].
    Asked(u32),
}

/// A question that was asked of a range of the zone.
struct Asked {
    at: u64,
    len: u64,
    question: Question,
    about: [u64; 2],
    /// When it was asked last: the number of times that the watch began to seek.
    seeking: u64,
}

impl Asked {
    fn key(&self) -> AskedKey {
        (self.at, self.len, self.question as usize, self.about)
    }
}

/// Range, question, and what it is about.
type AskedKey = (u64, u64, usize, [u64; 2]);

/// What a watched zone's accesses were; see [`crate::Zone::watch`]. Lines are numbered from the zone's first.
pub struct Watch {
    /// The whole zone.
    window: Window,
    /// Lines as they were before the first store since the last mark; perhaps more than once.
    before: Vec<(u32, Line)>,
    /// Lines.
    remembered: Bits,
    /// Words, as all that follow.
    sought: Bits,
    read: Vec<Look>,
    /// Those stored to as a whole since it seeks.
    stored: Bits,
    /// Questions, by their numbers.
    asked: Vec<Asked>,
    numbers: HashMap<AskedKey, u32>,
    /// How many times it began to seek.
    seeking: u64,
}

/// A moment to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchMark(usize);

impl Watch {
    /// A watch whose set of words sought is in `sought`.
    pub(crate) fn new(window: Window, sought: Words) -> Watch {
        let len = window.len();
        Watch {
            window,
            before: Vec::new(),
            remembered: Bits::new(words(len / LINE)),
            sought: Bits::new(sought),
            read: Vec::new(),
            stored: Bits::new(words(len / WORD)),
            asked: Vec::new(),
            numbers: HashMap::new(),
            seeking: 0,
        }
    }

    /// `[at, at + len)` is read.
    pub(crate) fn reads(&mut self, at: u64, len: u64) {
        if len > 0 {
            self.sought.take(at / WORD, (at + len - 1) / WORD, &mut self.read);
        }
    }

    /// `[at, at + len)` is asked `question`, and no more is learnt of it than the answer. If anything has been stored to it since
    /// the last mark, that is not told by what was there then: it is read.
    pub(crate) fn asks(&mut self, at: u64, len: u64, question: Question, about: [u64; 2]) {
        let last = at + len - 1;
        if has_any(&self.remembered.words, at / LINE, last / LINE) {
            return self.reads(at, len);
        }
        if !has_any(&self.sought.words, at / WORD, last / WORD) {
            return;
        }
        let new = Asked { at, len, question, about, seeking: 0 };
        let number = *self.numbers.entry(new.key()).or_insert(self.asked.len() as u32);
        if number as usize == self.asked.len() {
            self.asked.push(new);
        }
        let asked = &mut self.asked[number as usize];
        if asked.seeking != self.seeking {
            asked.seeking = self.seeking;
            self.read.push(Look::Asked(number));
        }
    }

    /// `[at, at + len)` is about to be stored to.
    pub(crate) fn stores(&mut self, at: u64, len: u64) {
        if len == 0 {
            return;
        }
        for line in at / LINE..=(at + len - 1) / LINE {
            self.remember(line);
        }
        // A word that is overwritten before it was read has had no influence, and will have none. One that is overwritten in part
        // goes on to be what it was, in part.
        let (first, end) = (at.div_ceil(WORD), (at + len) / WORD);
        if first < end {
            self.sought.clear(first, end - 1);
            self.stored.set_all(first, end - 1);
        }
        if !at.is_multiple_of(WORD) {
            self.sought.take(at / WORD, at / WORD, &mut self.read);
        }
        if !(at + len).is_multiple_of(WORD) {
            self.sought.take((at + len) / WORD, (at + len) / WORD, &mut self.read);
        }
    }

    fn remember(&mut self, line: u64) {
        if self.remembered.set(line) {
            self.before.push((line as u32, self.line(line)));
        }
    }

    /// Notes from now on which words of the lines in `runs` are read before they are overwritten, and which words of any line
    /// are stored to; forgets what it noted.
    pub fn seek(&mut self, runs: impl IntoIterator<Item = Range<u64>>) {
        self.sought.clear_all();
        self.stored.clear_all();
        self.read.clear();
        self.seeking += 1;
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            self.sought.set_all(run.start * WORDS, run.end * WORDS - 1);
        }
    }

    /// The looks at words sought, in the order in which these were first read, or asked. A word that was stored to in part
    /// counts as read.
    pub fn read(&self) -> &[Look] {
        &self.read
    }

    /// What the bytes that were asked question `number` would answer now.
    pub fn answer(&self, number: u32) -> u64 {
        let Asked { at, len, question, about, .. } = self.asked[number as usize];
        question(self.window.bytes(at, len as usize), about)
    }

    /// The words that a look was at, or that the answer to a question follows from.
    pub fn words(&self, look: Look) -> impl Iterator<Item = LineWords> + use<> {
        let (read, asked) = match look {
            Look::Words(words) => (Some(words), None),
            Look::Asked(number) => {
                let Asked { at, len, .. } = self.asked[number as usize];
                (None, Some((at / WORD, (at + len - 1) / WORD)))
            }
        };
        let asked = asked.into_iter().flat_map(|(first, last)| {
            (first / WORDS..=last / WORDS).map(move |line| {
                let words = mask(line / WORDS, first, last) >> (line % WORDS * WORDS);
                LineWords { line: line as u32, words: words as u8 }
            })
        });
        read.into_iter().chain(asked)
    }

    /// How many questions there are, numbered from 0 on.
    pub fn questions(&self) -> usize {
        self.asked.len()
    }

    /// Forgets all questions: no [`Look::Asked`] of before is good any more.
    pub fn forget_questions(&mut self) {
        self.asked.clear();
        self.numbers.clear();
    }

    /// The words of a line that were stored to as a whole since [`Watch::seek`], bit 0 being the first.
    pub fn stored_words(&self, line: u64) -> u8 {
        self.stored.byte(line)
    }

    /// A moment to which [`Watch::put_back`] can return.
    pub fn mark(&mut self) -> WatchMark {
        self.remembered.clear_all();
        WatchMark(self.before.len())
    }

    /// Takes back all stores since `mark`, which stays good.
    pub fn put_back(&mut self, mark: WatchMark) {
        while self.before.len() > mark.0 {
            if let Some((line, bytes)) = self.before.pop() {
                self.window.store(u64::from(line) * LINE, &bytes);
            }
        }
        self.remembered.clear_all();
    }

    /// The lines stored to since `mark`, some perhaps more than once, with what they held before.
    pub fn stored_since(&self, mark: WatchMark) -> &[(u32, Line)] {
        &self.before[mark.0..]
    }

    /// What a line holds.
    pub fn line(&self, line: u64) -> Line {
        let mut bytes = [0; LINE as usize];
        bytes.copy_from_slice(self.window.bytes(line * LINE, LINE as usize));
        bytes
    }

    /// Puts `bytes` into a line, as if it had reached the medium so. [`Watch::put_back`] takes it back, too.
    pub fn set_line(&mut self, line: u64, bytes: &Line) {
        self.remember(line);
        self.window.store(line * LINE, bytes);
    }

    /// The zone's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.window.bytes(0, self.window.len() as usize)
    }
}

/// The bits of a set of numbers: others may look at them while one changes them.
pub(crate) type Words = Arc<[AtomicU64]>;

/// Bits for numbers below `end`, none of which is a member.
pub(crate) fn words(end: u64) -> Words {
    (0..end.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

/// Whether any number of `first..=last` is a member.
#[inline]
pub(crate) fn has_any(words: &[AtomicU64], first: u64, last: u64) -> bool {
    let word = |index: u64| words[index as usize].load(Relaxed);
    if first == last {
        return word(first / 64) >> (first % 64) & 1 == 1;
    }
    (first / 64..=last / 64).any(|index| word(index) & mask(index, first, last) != 0)
}

/// The bits of `first..=last` that lie in word `index`.
fn mask(index: u64, first: u64, last: u64) -> u64 {
    let low = if index == first / 64 { u64::MAX << (first % 64) } else { u64::MAX };
    let high = if index == last / 64 { u64::MAX >> (63 - last % 64) } else { u64::MAX };
    low & high
}

/// A set of numbers that is emptied in the time its members took to be added.
struct Bits {
    words: Words,
    /// Words that may not be zero, some perhaps more than once.
    used: Vec<Range<u32>>,
}

impl Bits {
    fn new(words: Words) -> Bits {
        words.iter().for_each(|word| word.store(0, Relaxed));
        Bits { words, used: Vec::new() }
    }

    /// Adds `number`; false if it was a member.
    #[inline]
    fn set(&mut self, number: u64) -> bool {
        let (word, bit) = (&self.words[number as usize / 64], 1 << (number % 64));
        let before = word.load(Relaxed);
        word.store(before | bit, Relaxed);
        if before == 0 {
            self.uses(number / 64, number / 64);
        }
        before & bit == 0
    }

    /// The members among the eight numbers from `8 * index` on.
    fn byte(&self, index: u64) -> u8 {
        (self.words[index as usize / 8].load(Relaxed) >> (index % 8 * 8)) as u8
    }

    fn uses(&mut self, first: u64, last: u64) {
        self.used.push(first as u32..last as u32 + 1);
    }

    /// Adds `first..=last`.
    fn set_all(&mut self, first: u64, last: u64) {
        let (from, to) = (first / 64, last / 64);
        if from != to || self.words[from as usize].load(Relaxed) == 0 {
            self.uses(from, to);
        }
        for (index, word) in (from..=to).zip(&self.words[from as usize..=to as usize]) {
            word.store(word.load(Relaxed) | mask(index, first, last), Relaxed);
        }
    }

    fn clear_all(&mut self) {
        for used in self.used.drain(..) {
            self.words[used.start as usize..used.end as usize].iter().for_each(|word| word.store(0, Relaxed));
        }
    }

    fn clear(&mut self, first: u64, last: u64) {
        for index in first / 64..=last / 64 {
            let word = &self.words[index as usize];
            word.store(word.load(Relaxed) & !mask(index, first, last), Relaxed);
        }
    }

    /// Moves the members within `first..=last` to `into`, each eight of them together.
    fn take(&mut self, first: u64, last: u64, into: &mut Vec<Look>) {
        for index in first / 64..=last / 64 {
            let word = &self.words[index as usize];
            let before = word.load(Relaxed);
            let hits = before & mask(index, first, last);
            if hits == 0 {
                continue;
            }
            word.store(before & !hits, Relaxed);
            for (n, words) in hits.to_le_bytes().into_iter().enumerate().filter(|(_, words)| *words != 0) {
                into.push(Look::Words(LineWords { line: index as u32 * 8 + n as u32, words }));
            }
        }
    }
}
