//! Plots as SVG: bars for targets side by side, lines for a series.

use crate::statistics::Spread;
use crate::table::short;

/// Those of peers are theirs in every report: Amberfs in amber, a file system on disk a paler shade of it in memory.
const PEERS: [(&str, &str); 19] = [
    ("volume", "#d98e04"),
    ("amberfs", "#a35f00"),
    ("amberfs-op", "#6b4300"),
    ("volume-ext", "#b5a000"),
    ("amberfs-ext", "#e0b000"),
    ("fuse", "#c8b08a"),
    ("tmpfs", "#7f7f7f"),
    ("ext4", "#4c78a8"),
    ("xfs", "#54a24b"),
    ("btrfs", "#e45756"),
    ("fuse2fs", "#2f4b7c"),
    ("volume-ext-disk", "#d3c95a"),
    ("amberfs-ext-disk", "#f0d873"),
    ("ext4-disk", "#9ecae9"),
    ("ext3-disk", "#b7c9d9"),
    ("ext2-disk", "#c9d1d9"),
    ("xfs-disk", "#9fd598"),
    ("btrfs-disk", "#ff9d98"),
    ("fuse2fs-disk", "#7b8db5"),
];
/// Those of directories and volumes that were named.
const OTHERS: [&str; 6] = ["#9d8ac7", "#439894", "#b279a2", "#bab0ac", "#d67195", "#616bb0"];
const WIDTH: f64 = 520.0;
const LABEL: f64 = 110.0;
/// Letters that a label has room for.
const LABEL_LETTERS: usize = 17;
const VALUE: f64 = 80.0;
const BAR: f64 = 18.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 44.0;

/// The colour of a target: a peer's own, or one by its number.
pub(crate) fn colour(name: &str, number: usize) -> &'static str {
    let own = PEERS.iter().find(|(peer, _)| *peer == name);
    own.map_or(OTHERS[number % OTHERS.len()], |(_, colour)| colour)
}

/// Text that may stand in HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let escaped = |c| match c {
        '&' => "&amp;".to_string(),
        '<' => "&lt;".to_string(),
        '>' => "&gt;".to_string(),
        '"' => "&quot;".to_string(),
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// One bar for each target that has a value, as long as its median; a line from quartile to quartile.
pub(crate) fn bars(title: &str, rows: &[(&str, Option<Spread>)]) -> String {
    let longest = rows.iter().filter_map(|(_, spread)| *spread).map(|spread| spread.high).fold(0.0, f64::max);
    let scale = if longest > 0.0 { (WIDTH - LABEL - VALUE) / longest } else { 0.0 };
    let height = 24.0 + BAR * rows.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\"><text x=\"0\" y=\"13\" class=\"title\">{0}</text>\n",
        escape(title)
    );
    for (number, (name, spread)) in rows.iter().enumerate() {
        let y = 22.0 + BAR * number as f64;
        let middle = y + BAR / 2.0;
        svg += &format!(
            "<text x=\"{}\" y=\"{}\" class=\"end\">{}<title>{}</title></text>",
            LABEL - 6.0,
            middle + 4.0,
            escape(&label(name)),
            escape(name)
        );
        let Some(Spread { low, median, high }) = *spread else {
            svg += &format!("<text x=\"{LABEL}\" y=\"{}\">-</text>\n", middle + 4.0);
            continue;
        };
        let at = |value: f64| LABEL + value * scale;
        svg += &format!(
            "<rect x=\"{LABEL}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
            y + 2.0,
            (median * scale).max(0.5),
            BAR - 4.0,
            colour(name, number)
        );
        svg += &format!("<path d=\"M{:.1} {middle}H{:.1}\" class=\"whisker\"/>", at(low), at(high));
        svg +=
            &format!("<text x=\"{:.1}\" y=\"{}\">{}</text>\n", at(high) + 5.0, middle + 4.0, short(median));
    }
    svg + "</svg>\n"
}

/// A name, or as much of its end as there is room for: what directories have in common is at their beginning.
fn label(name: &str) -> String {
    match name.char_indices().rev().nth(LABEL_LETTERS - 1) {
        Some((at, _)) if at > 0 => {
            let rest: String = name[at..].chars().skip(1).collect();
            format!("…{rest}")
        }
        _ => name.to_string(),
    }
}

/// A line for each target through its values; both axes in powers, the upper one of ten. Across they are in proportion if one of them is 0.
pub(crate) fn lines(title: &str, across: &str, series: &[(&str, Vec<(f64, f64)>)]) -> String {
    let points = || series.iter().flat_map(|(_, points)| points).filter(|(_, y)| *y > 0.0);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = points().map(of);
        values.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let ((left, right), (low, high)) = (range(|point| point.0), range(|point| point.1));
    if high <= 0.0 {
        return String::new();
    }
    let across_powers = left > 0.0;
    let (bottom, top) = (low.log10().floor(), high.log10().ceil());
    let x = |value: f64| {
        let part = match across_powers {
            true => (value / left).log2() / (right / left).log2().max(1e-9),
            false => value / right.max(1e-9),
        };
        MARGIN + part * (WIDTH - MARGIN - 10.0)
    };
    let y =
        |value: f64| HEIGHT - 30.0 - (value.log10() - bottom) / (top - bottom).max(1e-9) * (HEIGHT - 54.0);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><text x=\"0\" y=\"13\" class=\"title\">{0}</text>\n",
        escape(title)
    );
    for power in bottom as i32..=top as i32 {
        let value = 10f64.powi(power);
        svg += &format!("<path d=\"M{MARGIN} {0:.1}H{1}\" class=\"grid\"/>", y(value), WIDTH - 10.0);
        svg += &format!(
            "<text x=\"{}\" y=\"{:.1}\" class=\"end\">{}</text>\n",
            MARGIN - 4.0,
            y(value) + 4.0,
            tick(value)
        );
    }
    let mut ticks: Vec<f64> = points().map(|point| point.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for value in ticks {
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{}\" class=\"middle\">{}</text>",
            x(value),
            HEIGHT - 14.0,
            binary(value)
        );
    }
    svg += &format!(
        "<text x=\"{}\" y=\"{}\" class=\"end\">{}</text>\n",
        WIDTH - 10.0,
        HEIGHT - 1.0,
        escape(across)
    );
    for (number, (name, points)) in series.iter().enumerate() {
        let points: Vec<&(f64, f64)> = points.iter().filter(|(_, y)| *y > 0.0).collect();
        let path: Vec<String> =
            points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"><title>{}</title></polyline>",
            path.join(" "),
            colour(name, number),
            escape(name)
        );
        for (at, value) in points {
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"><title>{}: {}</title></circle>\n",
                x(*at),
                y(*value),
                colour(name, number),
                escape(name),
                short(*value)
            );
        }
    }
    svg + "</svg>\n"
}

/// A power of ten, in few letters.
fn tick(value: f64) -> String {
    if value >= 1.0 { short(value).replace(".00", "").replace(".0", "") } else { format!("{value}") }
}

/// A number of bytes or threads, as it was asked for.
fn binary(value: f64) -> String {
    match value as u64 {
        value if value >= 1 << 20 && value.is_multiple_of(1 << 20) => format!("{}M", value >> 20),
        value if value >= 1 << 10 && value.is_multiple_of(1 << 10) => format!("{}K", value >> 10),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_colour_of_its_own() {
        let colours: std::collections::BTreeSet<&str> = crate::PEERS
            .iter()
            .map(|(name, _)| PEERS.iter().find(|(peer, _)| peer == name).expect("a colour").1)
            .collect();
        assert_eq!(colours.len(), crate::PEERS.len());
        assert!(OTHERS.contains(&colour("/mnt", 7)));
    }

    #[test]
    fn bars_are_in_proportion_and_text_is_escaped() {
        let spread = |value| Some(Spread { low: value, median: value, high: value });
        let svg = bars("a<b", &[("x&y", spread(100.0)), ("half", spread(50.0)), ("none", None)]);
        assert!(svg.contains("a&lt;b") && svg.contains("x&amp;y") && !svg.contains("a<b"), "{svg}");
        let full = WIDTH - LABEL - VALUE;
        assert!(
            svg.contains(&format!("width=\"{full:.1}\""))
                && svg.contains(&format!("width=\"{:.1}\"", full / 2.0)),
            "{svg}"
        );
        assert_eq!(svg.matches("<rect").count(), 2);
    }

    #[test]
    fn lines_have_every_point_and_leave_out_what_has_no_logarithm() {
        let svg = lines("t", "io", &[("a", vec![(64.0, 1e3), (4096.0, 1e6), (1e6, 0.0)]), ("b", Vec::new())]);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(">4K<") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(lines("t", "io", &[("a", Vec::new())]), "");
    }

    #[test]
    fn a_series_from_0_has_its_first_point() {
        let svg = lines("t", "sync", &[("a", vec![(0.0, 1e3), (1.0, 1e3), (4.0, 1e3)])]);
        for at in [0.0, 0.25, 1.0] {
            let x = MARGIN + at * (WIDTH - MARGIN - 10.0);
            assert!(svg.contains(&format!("cx=\"{x:.1}\"")), "{at}: {svg}");
        }
        let svg = lines("t", "sync", &[("a", vec![(0.0, 1e3)])]);
        assert!(svg.matches("<circle").count() == 1 && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn bars_of_nothing_have_no_length() {
        let nothing = Some(Spread { low: 0.0, median: 0.0, high: 0.0 });
        let svg = bars("asked of the disk", &[("a", nothing), ("b", nothing)]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_label_is_the_end_of_a_long_name() {
        assert_eq!(label("amberfs-ext-disk"), "amberfs-ext-disk");
        assert_eq!(label("12345678901234567"), "12345678901234567");
        assert_eq!(label("/mnt/12345678901234567"), "…2345678901234567");
        assert_eq!(label("ä".repeat(20).as_str()).chars().count(), LABEL_LETTERS);
        let svg = bars("t", &[("/mnt/a/very/long/name/of/a/directory", None)]);
        assert!(svg.contains("<title>/mnt/a/very/long/name/of/a/directory</title>"), "{svg}");
    }
}
