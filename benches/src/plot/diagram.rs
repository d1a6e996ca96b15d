//! The diagram of README.md: the programs, the daemon's parts and the connections between them.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, TextStyle};

use super::{COLORS, GRID, INK, page_colors};

/// Width and height of the diagram, pixels.
const SIZE: (u32, u32) = (860, 400);
/// Length and half width of an arrow's head, pixels.
const HEAD: (i32, i32) = (9, 4);
/// Height of a line of text, pixels.
const LINE: i32 = 18;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A rectangle with lines of text; the first line is its title.
struct Block {
    /// Left, top, right and bottom edge, pixels.
    edges: [i32; 4],
    color: RGBColor,
    lines: &'static [&'static str],
}

/// A straight connection with a head at either end, and a label above its middle or, if it is vertical, on its left.
struct Arrow {
    from: (i32, i32),
    to: (i32, i32),
    label: &'static [&'static str],
}

const PEER: RGBColor = COLORS[1];
const DAEMON: RGBColor = COLORS[0];
const LOCAL: RGBColor = COLORS[2];

const BLOCKS: [Block; 9] = [
    Block {
        edges: [10, 60, 190, 190],
        color: PEER,
        lines: &["peer", "Linux soft-iWARP", "iWARP NIC", "iwarpctl remote", "another Ironwarp"],
    },
    Block { edges: [330, 10, 560, 280], color: DAEMON, lines: &["iwarpd"] },
    Block {
        edges: [345, 40, 545, 90],
        color: GRID,
        lines: &["port (DPDK)", "NIC, tap, ring, memif, af_xdp …"],
    },
    Block { edges: [345, 98, 545, 148], color: GRID, lines: &["TCP/IP", "tcp-stack"] },
    Block { edges: [345, 156, 545, 206], color: GRID, lines: &["MPA, DDP, RDMAP", "rdma"] },
    Block { edges: [345, 214, 545, 264], color: GRID, lines: &["control socket", "JSON-RPC"] },
    Block { edges: [680, 130, 850, 202], color: LOCAL, lines: &["region", "named memory", "in hugepages"] },
    Block { edges: [680, 20, 850, 80], color: LOCAL, lines: &["local program", "iwarp-verbs"] },
    Block {
        edges: [330, 310, 850, 380],
        color: DAEMON,
        lines: &[
            "program with its own dataplane",
            "verbs ─ RDMAP, DDP, MPA ─ TCP/IP ─ port, in the program's threads",
        ],
    },
];

const CONTROL: Block = Block {
    edges: [680, 218, 850, 278],
    color: LOCAL,
    lines: &["iwarpctl, scripts", "register, status, drops"],
};

const ARROWS: [Arrow; 5] = [
    Arrow { from: (190, 75), to: (345, 75), label: &["iWARP over TCP", "Ethernet"] },
    Arrow { from: (545, 245), to: (680, 245), label: &["Unix socket"] },
    Arrow { from: (545, 178), to: (680, 178), label: &["one copy,", "checked access"] },
    Arrow { from: (765, 80), to: (765, 130), label: &["maps by name"] },
    Arrow { from: (100, 190), to: (330, 345), label: &[] },
];

/// Draws the diagram.
///
/// # Errors
/// The drawing library fails.
pub(super) fn svg() -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&root).map_err(|error| anyhow!("drawing the diagram: {error}"))?;
        root.present().map_err(|error| anyhow!("drawing the diagram: {error}"))?;
    }
    Ok(page_colors(
        &text,
        "Peers reach iwarpd over Ethernet with iWARP over TCP. iwarpd places their data in regions, which local \
         programs map by name. iwarpctl and scripts use its control socket. A program with its own dataplane talks to \
         peers directly.",
    ))
}

fn draw(area: &Area<'_>) -> Drawn {
    for shape in BLOCKS.iter().chain([&CONTROL]) {
        block(area, shape)?;
    }
    ARROWS.iter().try_for_each(|shape| arrow(area, shape))
}

fn font(size: i32, across: HPos) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK).pos(Pos::new(across, VPos::Center))
}

fn block(area: &Area<'_>, Block { edges: [left, top, right, bottom], color, lines }: &Block) -> Drawn {
    let corners = [(*left, *top), (*right, *bottom)];
    area.draw(&Rectangle::new(corners, color.mix(0.15).filled()))?;
    area.draw(&Rectangle::new(corners, color.stroke_width(1)))?;
    // A block that contains others has its only line at the top.
    let height = LINE * i32::try_from(lines.len())?;
    let first = if lines.len() == 1 { top + LINE - 2 } else { (top + bottom - height + LINE) / 2 };
    for (index, line) in lines.iter().enumerate() {
        let y = first + LINE * i32::try_from(index)?;
        let size = if index == 0 { 18 } else { 15 };
        area.draw(&Text::new(*line, ((left + right) / 2, y), font(size, HPos::Center)))?;
    }
    Ok(())
}

fn arrow(area: &Area<'_>, Arrow { from, to, label }: &Arrow) -> Drawn {
    area.draw(&PathElement::new([*from, *to], INK.stroke_width(2)))?;
    for (tip, tail) in [(from, to), (to, from)] {
        area.draw(&Polygon::new(head(*tip, *tail), INK.filled()))?;
    }
    let (x, y) = ((from.0 + to.0) / 2, (from.1 + to.1) / 2);
    let vertical = from.0 == to.0;
    let across = if vertical { HPos::Right } else { HPos::Center };
    for (index, line) in label.iter().rev().enumerate() {
        let above = LINE / 2 + 2 + (LINE - 3) * i32::try_from(index)?;
        let at = if vertical { (x - 8, y) } else { (x, y - above) };
        area.draw(&Text::new(*line, at, font(15, across)))?;
    }
    Ok(())
}

/// The three corners of the head at `tip` of a line from `tail`.
fn head(tip: (i32, i32), tail: (i32, i32)) -> [(i32, i32); 3] {
    let (length, half) = (f64::from(HEAD.0), f64::from(HEAD.1));
    let (dx, dy) = (f64::from(tail.0 - tip.0), f64::from(tail.1 - tip.1));
    let norm = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / norm, dy / norm);
    let corner = |side: f64| {
        let x = f64::from(tip.0) + ux * length - uy * half * side;
        let y = f64::from(tip.1) + uy * length + ux * half * side;
        (round(x), round(y))
    };
    [tip, corner(1.0), corner(-1.0)]
}

#[expect(clippy::cast_possible_truncation, reason = "coordinates of a picture of 860 pixels")]
fn round(pixels: f64) -> i32 {
    pixels.round() as i32
}
