//! Rewrites a source so that its mutants are there beside the original code; `crate::mutant::is(NUMBER)` chooses one at run
//! time. Left out, because they cannot be chosen at run time: mutants in constants, and results of `impl` types other than
//! iterators.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

pub struct Mutant {
    pub number: usize,
    pub genre: String,
    pub replacement: String,
}

/// Line, and column from 1.
pub type Place = (u64, u64);

struct Rewriter<'a> {
    text: &'a str,
    mutants: BTreeMap<Place, Vec<Mutant>>,
    /// Text to insert before a byte: what begins there, outermost first, and what ends there, innermost first.
    begins: BTreeMap<usize, String>,
    ends: BTreeMap<usize, String>,
    in_const: bool,
    used: Vec<usize>,
    /// `let` with `||` is no Rust.
    unviable: Vec<usize>,
}

fn place(at: LineColumn) -> Place {
    (at.line as u64, at.column as u64 + 1)
}

fn is(number: usize) -> String {
    format!("crate::mutant::is({number})")
}

/// Whether a condition is a chain with `let`, which cannot be in a block of its own.
fn has_let(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// `X` of `-> impl Iterator<Item = X> + …`.
fn item_of(output: &str) -> String {
    let from = output.split_once('=').map_or("", |(_, from)| from.trim());
    let mut depth = 0;
    let end = from.find(|c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth < 0
    });
    end.and_then(|end| from.get(..end)).unwrap_or("_").into()
}

impl Rewriter<'_> {
    /// The mutants of some kinds at a place. None in constants, where nothing can be chosen at run time.
    fn take(&mut self, at: Place, genre: &str) -> Vec<Mutant> {
        if self.in_const {
            return Vec::new();
        }
        let Some(here) = self.mutants.get_mut(&at) else { return Vec::new() };
        let (taken, left): (Vec<_>, Vec<_>) = here.drain(..).partition(|mutant| mutant.genre == genre);
        *here = left;
        self.used.extend(taken.iter().map(|mutant| mutant.number));
        taken
    }

    fn raw(&self, span: Span) -> &str {
        &self.text[span.byte_range()]
    }

    /// `(if is(1) { other } else { … })` around a range.
    fn choose(&mut self, range: Range<usize>, others: Vec<(usize, String)>) {
        if others.is_empty() {
            return;
        }
        let mut begin = String::from("(");
        for (number, other) in others {
            begin += &format!("if {} {{ /*[{number}*/ {other} /*{number}]*/ }} else ", is(number));
        }
        self.wrap(range, &(begin + "{"), "})");
    }

    fn wrap(&mut self, range: Range<usize>, begin: &str, end: &str) {
        self.begins.entry(range.start).or_default().push_str(begin);
        self.ends.entry(range.end).or_default().insert_str(0, end);
    }

    fn constant(&mut self, visit: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.in_const, true);
        visit(self);
        self.in_const = before;
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block, visit: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.in_const, signature.constness.is_some());
        // Two results of an `impl` type would have to be of one type.
        let output = self.raw(signature.output.span()).to_string();
        let is_chosen = !output.contains("impl ");
        if output.starts_with("-> impl Iterator") {
            self.iterator(block, &item_of(&output));
        }
        if let Some(first) = block.stmts.first().filter(|_| is_chosen) {
            for mutant in self.take(place(first.span().start()), "FnValue") {
                let number = mutant.number;
                let text =
                    format!("if {} {{ /*[{number}*/ return {}; /*{number}]*/ }} ", is(number), mutant.replacement);
                self.begins.entry(first.span().byte_range().start).or_default().push_str(&text);
            }
        }
        visit(self);
        self.in_const = before;
    }

    /// A function's body in the place of an iterator, with those of its mutants beside it.
    fn iterator(&mut self, block: &syn::Block, item: &str) {
        let (Some(first), Some(last)) = (block.stmts.first(), block.stmts.last()) else { return };
        for mutant in self.take(place(first.span().start()), "FnValue") {
            let number = mutant.number;
            let other = mutant.replacement.replacen("iter::once(", &format!("iter::once::<{item}>("), 1);
            let begin = format!(
                "if {} {{ crate::mutant::Either::Mutant(/*[{number}*/ {other} /*{number}]*/) }} \
                 else {{ crate::mutant::Either::Original({{",
                is(number)
            );
            self.wrap(first.span().byte_range().start..last.span().byte_range().end, &begin, "}) }");
        }
    }

    fn finished(&self) -> String {
        let mut out = String::new();
        let mut done = 0;
        let places: HashSet<usize> = self.begins.keys().chain(self.ends.keys()).copied().collect();
        let mut places: Vec<usize> = places.into_iter().collect();
        places.sort_unstable();
        for at in places {
            out += &self.text[done..at];
            out += self.ends.get(&at).map_or("", String::as_str);
            out += self.begins.get(&at).map_or("", String::as_str);
            done = at;
        }
        out + &self.text[done..]
    }
}

impl<'ast> Visit<'ast> for Rewriter<'_> {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(|this| visit::visit_item_const(this, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(|this| visit::visit_item_static(this, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(|this| visit::visit_impl_item_const(this, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.constant(|this| visit::visit_trait_item_const(this, item));
    }

    fn visit_type(&mut self, item: &'ast syn::Type) {
        self.constant(|this| visit::visit_type(this, item));
    }

    fn visit_generic_argument(&mut self, item: &'ast syn::GenericArgument) {
        self.constant(|this| visit::visit_generic_argument(this, item));
    }

    fn visit_pat(&mut self, item: &'ast syn::Pat) {
        self.constant(|this| visit::visit_pat(this, item));
    }

    fn visit_expr_repeat(&mut self, item: &'ast syn::ExprRepeat) {
        self.visit_expr(&item.expr);
        self.constant(|this| this.visit_expr(&item.len));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, |this| visit::visit_impl_item_fn(this, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        match &item.default {
            Some(block) => self.function(&item.sig, block, |this| visit::visit_trait_item_fn(this, item)),
            None => visit::visit_trait_item_fn(self, item),
        }
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        if has_let(&expr.left) || has_let(&expr.right) {
            let here = self.mutants.remove(&place(expr.op.span().start())).unwrap_or_default();
            self.unviable.extend(here.iter().map(|mutant| mutant.number));
        } else {
            let (left, right) = (self.raw(expr.left.span()).to_string(), self.raw(expr.right.span()).to_string());
            let mutants = self.take(place(expr.op.span().start()), "BinaryOperator");
            let others =
                mutants.into_iter().map(|mutant| (mutant.number, format!("{left} {} {right}", mutant.replacement)));
            self.choose(expr.span().byte_range(), others.collect());
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        let operand = self.raw(expr.expr.span()).to_string();
        let mutants = self.take(place(expr.op.span().start()), "UnaryOperator");
        let others = mutants.into_iter().map(|mutant| (mutant.number, operand.clone()));
        self.choose(expr.span().byte_range(), others.collect());
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        for field in &expr.fields {
            let (Some(rest), syn::Member::Named(name)) = (&expr.rest, &field.member) else { continue };
            let base = format!("({}).{name}", self.raw(rest.span()));
            let shorthand = field.colon_token.is_none();
            let mutants = self.take(place(field.span().start()), "StructField");
            if mutants.is_empty() {
                continue;
            }
            let others = mutants.into_iter().map(|mutant| (mutant.number, base.clone())).collect();
            if shorthand {
                self.begins.entry(field.span().byte_range().start).or_default().push_str(&format!("{name}: "));
            }
            self.choose(field.expr.span().byte_range(), others);
        }
        visit::visit_expr_struct(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        let is_rest = |arm: &syn::Arm| match &arm.pat {
            _ if arm.guard.is_some() => false,
            syn::Pat::Wild(_) => true,
            syn::Pat::Ident(name) => name.ident.to_string().starts_with(char::is_lowercase), // not `None`
            _ => false,
        };
        let has_rest = expr.arms.iter().any(is_rest);
        // With a guard, an arm no longer counts towards an exhaustive match: left to cargo-mutants.
        let counts = |arm: &&syn::Arm| arm.guard.is_none() && (!has_rest || is_rest(arm));
        for arm in expr.arms.iter().filter(counts) {
            let here = self.mutants.get_mut(&place(arm.pat.span().start()));
            here.into_iter().for_each(|here| here.retain(|mutant| mutant.genre != "MatchArm"));
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let deleted = self.take(place(arm.pat.span().start()), "MatchArm");
        let kept: Vec<String> = deleted.iter().map(|mutant| format!("!{}", is(mutant.number))).collect();
        let kept = kept.join(" && ");
        match &arm.guard {
            Some((_, guard)) if !has_let(guard) => {
                if !kept.is_empty() {
                    self.wrap(guard.span().byte_range(), &format!("({kept}) && ("), ")");
                }
                let mutants = self.take(place(guard.span().start()), "MatchArmGuard");
                let others = mutants.into_iter().map(|mutant| (mutant.number, mutant.replacement));
                self.choose(guard.span().byte_range(), others.collect());
            }
            None if !kept.is_empty() => {
                let end = arm.pat.span().byte_range().end;
                self.ends.entry(end).or_default().push_str(&format!(" if {kept}"));
            }
            _ => {}
        }
        visit::visit_arm(self, arm);
    }
}

/// The rewritten text, the numbers of the mutants in it, and of those that are no Rust.
pub fn rewrite(text: &str, mutants: BTreeMap<Place, Vec<Mutant>>) -> (String, Vec<usize>, Vec<usize>) {
    let parsed = syn::parse_file(text).expect("the source can be parsed");
    let mut rewriter = Rewriter {
        text,
        mutants,
        begins: BTreeMap::new(),
        ends: BTreeMap::new(),
        in_const: false,
        used: Vec::new(),
        unviable: Vec::new(),
    };
    rewriter.visit_file(&parsed);
    (rewriter.finished(), rewriter.used, rewriter.unviable)
}
