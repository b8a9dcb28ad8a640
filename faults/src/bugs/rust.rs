//! The parts of a Rust file, found with `syn`.

use std::ops::Range;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprAssign, ExprCall, ExprIf, ExprMethodCall, ExprWhile,
    ImplItemFn, ItemFn, ItemImpl, ItemMod, Local, Pat, PatGuard, Stmt, Type,
    punctuated::Punctuated,
    spanned::Spanned,
    token::Comma,
    visit::{self, Visit},
};

use super::source::{Kind, Node, Token};
use crate::protocol::{Result, failure};

pub(super) fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let stream = text.parse().map_err(|error| failure(format!("`{text}` is no Rust: {error}")))?;
    flatten(stream, &mut tokens);
    Ok(tokens)
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let token = |text: String, span: Span| Token { text, at: span.byte_range() };
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    // These come from macros only.
                    Delimiter::None => continue,
                };
                tokens.push(token(open.into(), group.span_open()));
                flatten(group.stream(), tokens);
                tokens.push(token(close.into(), group.span_close()));
            }
            tree => tokens.push(token(tree.to_string(), tree.span())),
        }
    }
}

pub(super) fn nodes(text: &str) -> Result<Vec<Node>> {
    let mut parts = Parts::default();
    parts.visit_file(&syn::parse_file(text)?);
    Ok(parts.nodes)
}

/// Collects the parts of a file. The arguments of a macro call are not parsed: they may have any
/// syntax.
#[derive(Default)]
struct Parts {
    nodes: Vec<Node>,
    /// The type of the surrounding `impl`, with the trait.
    owner: Option<String>,
}

impl Parts {
    fn add(&mut self, kind: Kind, at: &impl Spanned) {
        self.nodes.push(Node { kind, at: range(at) });
    }

    fn function(&mut self, name: &impl ToString, body: &Block) {
        let name = name.to_string();
        let path = self.owner.as_ref().map(|owner| format!("{owner}::{name}")).unwrap_or(name);
        self.add(Kind::Function(path), body);
        // The path of a function within a function is its name.
        let owner = self.owner.take();
        self.visit_block(body);
        self.owner = owner;
    }

    fn call(&mut self, name: String, call: &impl Spanned, arguments: &Punctuated<Expr, Comma>) {
        for argument in arguments {
            self.add(Kind::Argument(name.clone()), argument);
        }
        self.add(Kind::Call(name), call);
    }

    /// Adds a condition and its operands.
    fn condition(&mut self, condition: &Expr) {
        self.add(Kind::Condition, condition);
        self.operands(condition);
    }

    fn operands(&mut self, expression: &Expr) {
        match expression {
            Expr::Binary(binary) if is_joined(expression) => {
                self.operands(&binary.left);
                self.operands(&binary.right);
            }
            Expr::Paren(inner) if is_joined(&inner.expr) => self.operands(&inner.expr),
            operand => {
                self.add(Kind::Operand, operand);
                self.visit_expr(operand);
            }
        }
    }
}

fn range(of: &impl Spanned) -> Range<usize> {
    of.span().byte_range()
}

/// Returns `true` for an expression of `&&` or `||`.
fn is_joined(expression: &Expr) -> bool {
    matches!(expression, Expr::Binary(of) if matches!(of.op, BinOp::And(_) | BinOp::Or(_)))
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_it = |attribute: &Attribute| match attribute.meta.require_list() {
        Ok(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        Err(_) => false,
    };
    attributes.iter().any(is_it)
}

/// The last name in a path, without generics.
fn last_name(path: &syn::Path) -> Option<String> {
    path.segments.last().map(|segment| segment.ident.to_string())
}

impl<'ast> Visit<'ast> for Parts {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        let Type::Path(path) = &*block.self_ty else { return };
        let (owner, of_trait) = (last_name(&path.path), &block.trait_);
        self.owner = match of_trait.as_ref().and_then(|(of_trait, _)| last_name(of_trait)) {
            Some(of_trait) => owner.map(|owner| format!("{of_trait} for {owner}")),
            None => owner,
        };
        visit::visit_item_impl(self, block);
        self.owner = None;
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.function(&function.sig.ident, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.function(&function.sig.ident, &function.block);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        self.add(Kind::Statement, statement);
        visit::visit_stmt(self, statement);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        let mut variable = &local.pat;
        while let Pat::Type(typed) = variable {
            variable = &typed.pat;
        }
        if let Some(value) = &local.init {
            self.add(Kind::Value(range(variable)), &value.expr);
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_assign(&mut self, assignment: &'ast ExprAssign) {
        self.add(Kind::Value(range(&assignment.left)), &assignment.right);
        visit::visit_expr_assign(self, assignment);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(name) = last_name(&function.path)
        {
            self.call(name, call, &call.args);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.call(call.method.to_string(), call, &call.args);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        self.add(Kind::Arm(range(&arm.pat)), &arm.body);
        visit::visit_arm(self, arm);
    }

    fn visit_pat_guard(&mut self, guard: &'ast PatGuard) {
        self.visit_pat(&guard.pat);
        self.condition(&guard.guard);
    }

    fn visit_expr_if(&mut self, branch: &'ast ExprIf) {
        self.condition(&branch.cond);
        self.visit_block(&branch.then_branch);
        if let Some((_, other)) = &branch.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, branch: &'ast ExprWhile) {
        self.condition(&branch.cond);
        self.visit_block(&branch.body);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        if is_joined(expression) {
            self.condition(expression);
        } else {
            visit::visit_expr(self, expression);
        }
    }
}
