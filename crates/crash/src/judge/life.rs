//! What comes of recovered volumes when they are read, checked, recovered again, and used: it is known, or found out.

use std::rc::Rc;

use nvm::Region;

use crate::judge::recovery::{Opened, Recovered};
use crate::judge::{Fault, Judge, Looked, State, Verdict, guarded};
use crate::memo::Step;
use crate::subject::Mounted;
use crate::tree::Tree;
use crate::usage;

/// What comes of a recovered volume.
pub(super) struct Life {
    pub(super) verdict: Verdict,
    pub(super) looked: Looked,
}

impl Judge {
    /// Judges what comes of the volume in memory, which a recovery left, or tells what is known of that. `opened` is what it opened, if it
    /// happened just now.
    pub(super) fn life_of(
        &mut self,
        state: &State<'_>,
        did: &Recovered,
        opened: Option<Opened>,
    ) -> Result<Life, Fault> {
        let (lives, mut looks) = (self.lives.entry(did.hash).or_default(), Vec::new());
        let differ = |words| state.may_differ(words) && did.left(words).is_some();
        match self.arena.known(lives, state.number, differ, &mut looks) {
            Some(verdict) if !self.doubts => {
                let list = self.gathered.last().map(|gathered| gathered.looks.list);
                let known = list.map(|list| self.arena.looks_of(lives, list));
                if let Some(opened) = opened {
                    opened.abandon();
                }
                Ok(Life { verdict, looked: Looked { looks, known } })
            }
            known => self.live_anew(state, did, opened, known),
        }
    }

    /// Judges it. What comes of it must be what is `known`, if anything is.
    fn live_anew(
        &mut self,
        state: &State<'_>,
        did: &Recovered,
        opened: Option<Opened>,
        known: Option<Verdict>,
    ) -> Result<Life, Fault> {
        self.counts.checked += 1;
        let list = self.next_number();
        let known = known.map(|verdict| {
            let lives = self.lives.entry(did.hash).or_default();
            (verdict, self.arena.looks_of(lives, list))
        });
        let opened = match opened {
            Some(opened) => opened,
            None => {
                self.arena.put_back(state.mark);
                self.open_again()?
            }
        };
        let recovered = self.arena.mark();
        self.arena.seek(self.universe.runs());
        let verdict = self.live(opened).map(|tree| self.interned(&tree)).map_err(Fault::of);
        let looks = self.arena.looks();
        self.arena.put_back(recovered);
        if known.is_some_and(|(known, looks_then)| differ(&known, &verdict) || looks_then != looks) {
            return Err(Fault::of("what comes of it is not what is known".into()));
        }
        let lives = self.lives.entry(did.hash).or_default();
        self.steps += lives.insert(&self.arena.steps(&looks), verdict.clone());
        Ok(Life { verdict, looked: Looked { looks, known: None } })
    }

    /// Reads the tree, checks, recovers again, and uses the volume, and the one beside it.
    fn live(&self, opened: Opened) -> Result<Rc<Tree>, String> {
        let tree = self.live_in(&self.arena.region, opened.volume, false)?;
        let (Some(mounted), Some(region)) = (opened.beside, &self.arena.beside) else { return Ok(tree) };
        let beside = self.live_in(region, mounted, true);
        let beside = beside.map_err(|what| format!("the volume beside: {what}"))?;
        Ok(Rc::new(Tree::clone(&tree).with_beside(Some(beside))))
    }

    /// The same, in one region. Of a volume that was just made, `is_new`, the last copy of something may be missing.
    fn live_in(&self, region: &Region, mounted: Box<dyn Mounted>, is_new: bool) -> Result<Rc<Tree>, String> {
        let subject = self.subject;
        let tree = guarded(|| {
            let tree = self.tree_of(&*mounted).map_err(|error| format!("its tree cannot be read: {error}"));
            mounted.abandon();
            tree
        })?;
        if is_new {
            guarded(|| subject.complete(region)).map_err(|what| format!("it cannot be completed: {what}"))?;
        }
        let check = |when: &str| {
            guarded(|| subject.check(region)).map_err(|what| format!("the check {when} finds: {what}"))
        };
        check("after recovery")?;
        let again = guarded(|| subject.open(region, self.promise))
            .map_err(|what| format!("it opens once, but not again: {what}"))?;
        guarded(move || {
            let unread = |error: vfs::Error| format!("its tree cannot be read again: {error}");
            if Tree::hash_of(&*again).map_err(unread)? != tree.hash() {
                let difference = Tree::of(&*again).map_err(unread)?.difference(&tree).unwrap_or_default();
                return Err(format!("recovering twice is not recovering once: {difference}"));
            }
            again.clear_snapshots().map_err(|what| format!("its snapshots cannot be removed: {what}"))?;
            usage::empty(&*again).map_err(|what| format!("it cannot be used: {what}"))?;
            again.close().map_err(|what| format!("it cannot be closed: {what}"))?;
            Ok(tree)
        })
        .and_then(|tree| check("after use").map(|()| tree))
    }

    fn interned(&mut self, tree: &Rc<Tree>) -> Rc<Tree> {
        let known = self.trees.entry(tree.hash()).or_insert_with(|| {
            self.steps += tree.bytes() / size_of::<Step>();
            tree.clone()
        });
        known.clone()
    }

    /// Reads a volume's tree; one that was met before is not put together again.
    fn tree_of(&self, mounted: &dyn Mounted) -> vfs::Result<Rc<Tree>> {
        match self.trees.get(&Tree::hash_of(mounted)?) {
            Some(tree) => Ok(tree.clone()),
            None => Tree::of(mounted).map(Rc::new),
        }
    }
}

/// Whether two verdicts are not the same.
fn differ(one: &Verdict, other: &Verdict) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => one.hash() != other.hash(),
        (Err(one), Err(other)) => one.what != other.what,
        _ => true,
    }
}
