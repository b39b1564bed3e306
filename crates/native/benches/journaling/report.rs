//! One table: a row for each size, a column for each scheme; how fast, and what reached NVM for each byte written.

use native::Journaling;
use nvm::{Account, LINE, Purpose};

use crate::measure::{Cost, spread};

/// Adaptive logging keeps up with the best of the others if it has this part of its speed, or the inverse of it in bytes.
/// Speed is judged by CPU time: nothing here sleeps, so on a quiet machine that is the wall's, and on another it is what
/// others disturb less.
const KEEPS: f64 = 0.97;
/// Its place among the schemes.
const ADAPTIVE: usize = Journaling::ALL.len() - 1;
const _: () = assert!(matches!(Journaling::ALL[ADAPTIVE], Journaling::Adaptive));

/// One batch with one scheme.
pub(crate) struct Cell {
    pub(crate) cost: Cost,
    pub(crate) written: Account,
}

impl Cell {
    /// Bytes that reached NVM for this purpose.
    fn sent(&self, purpose: Purpose) -> f64 {
        (self.written.of(purpose).lines() * LINE) as f64
    }

    fn all_sent(&self) -> f64 {
        (self.written.lines() * LINE) as f64
    }
}

/// One size of write.
pub(crate) struct Row {
    name: String,
    /// That a batch writes.
    bytes: u64,
    /// The rounds of each scheme.
    cells: [Vec<Cell>; Journaling::ALL.len()],
}

impl Row {
    pub(crate) fn new(name: String, bytes: u64) -> Row {
        Row { name, bytes, cells: Default::default() }
    }

    pub(crate) fn add(&mut self, scheme: usize, cell: Cell) {
        self.cells[scheme].push(cell);
    }

    /// How adaptive logging stands to the best other scheme, by what `of` says a batch cost: 1 is as good, less is worse.
    fn standing(&self, of: impl Fn(&Cell) -> f64) -> (f64, Journaling) {
        let against = |scheme: usize| {
            let pairs = self.cells[scheme].iter().zip(&self.cells[ADAPTIVE]);
            spread(pairs.map(|(other, adaptive)| of(other) / of(adaptive))).median
        };
        let others = (0..ADAPTIVE).map(|scheme| (against(scheme), Journaling::ALL[scheme]));
        others.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are others")
    }

    fn verdict(&self, of: impl Fn(&Cell) -> f64) -> String {
        let (standing, best) = self.standing(of);
        let word = if standing >= KEEPS { "keeps" } else { "MISSES" };
        format!("{standing:>5.2} of {best:<12} {word}")
    }
}

/// The rows of one workload.
pub(crate) struct Table {
    title: String,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(title: &str) -> Table {
        Table { title: title.to_string(), rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn print(&self) {
        self.print_speed();
        self.print_bytes();
    }

    fn print_head(&self, what: &str, width: usize) {
        println!("\n{}: {what}", self.title);
        print!("{:<12}", "write size");
        Journaling::ALL.iter().for_each(|scheme| print!(" {:>width$}", scheme.to_string()));
        println!("  adaptive, against the best other");
    }

    fn print_speed(&self) {
        self.print_head("MB/s by wall time [quartiles], then by CPU time; checkpoint included", 30);
        for row in &self.rows {
            print!("{:<12}", row.name);
            for cells in &row.cells {
                let wall = spread(cells.iter().map(|cell| row.bytes as f64 * 1e3 / cell.cost.wall));
                let cpu = spread(cells.iter().map(|cell| row.bytes as f64 * 1e3 / cell.cost.cpu));
                let wall_text =
                    format!("{} [{}–{}]", figure(wall.median), figure(wall.low), figure(wall.high));
                print!(" {wall_text:>22} {:>7}", figure(cpu.median));
            }
            println!(
                "  {}; wall {:.2}",
                row.verdict(|cell| cell.cost.cpu),
                row.standing(|cell| cell.cost.wall).0
            );
        }
    }

    fn print_bytes(&self) {
        self.print_head(
            "bytes to NVM for each written (data + journal + checkpoint + metadata + allocation)",
            36,
        );
        for row in &self.rows {
            print!("{:<12}", row.name);
            for cells in &row.cells {
                let each = |of: &dyn Fn(&Cell) -> f64| spread(cells.iter().map(of)).median / row.bytes as f64;
                let parts = [
                    Purpose::Data,
                    Purpose::Journal,
                    Purpose::Checkpoint,
                    Purpose::Metadata,
                    Purpose::Allocation,
                ];
                let parts = parts.map(|purpose| format!("{:.2}", each(&|cell| cell.sent(purpose)))).join("+");
                print!(" {:>36}", format!("{:.2} ({parts})", each(&Cell::all_sent)));
            }
            println!("  {}", row.verdict(Cell::all_sent));
        }
    }
}

/// With three digits that count.
fn figure(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}
