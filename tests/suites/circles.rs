//! The imports between the files of one folder of `lockcore/src`, and the names of its types.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{Item, UseTree, visit::Visit};

/// The maximum number of files in one folder that may import each other in a circle.
const LARGEST_CIRCLE: usize = 3;

/// Crates whose types a reader of `lockcore` meets: everything in the workspace.
const CRATES: [&str; 11] = [
    "backend-etcd",
    "backend-memory",
    "backend-postgres",
    "backend-redis",
    "benches",
    "examples",
    "faults",
    "interop",
    "lockcore",
    "simulation",
    "tests",
];

/// Replace `measure.rs` and `measured_acquisition.rs`, with the same types, if the feature `metrics`
/// is off.
const STAND_INS: [&str; 2] = ["unmeasured.rs", "unmeasured_acquisition.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folders and the Rust files below `folder`.
fn walk(folder: &Path, folders: &mut Vec<PathBuf>, files: &mut Vec<PathBuf>) {
    folders.push(folder.to_owned());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            walk(&path, folders, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn parse(file: &Path) -> syn::File {
    syn::parse_file(&fs::read_to_string(file).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// All paths that a file names, each as the list of its parts. Tests are left out.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl Paths {
    fn of(file: &syn::File) -> Vec<Vec<String>> {
        let mut paths = Self::default();
        paths.visit_file(file);
        paths.0
    }

    fn add(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add(before, &path.tree);
                before.pop();
            }
            UseTree::Name(name) => self.add_name(before, &name.ident.to_string()),
            UseTree::Rename(name) => self.add_name(before, &name.ident.to_string()),
            UseTree::Glob(_) => self.add_name(before, "*"),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add(before, tree)),
        }
    }

    fn add_name(&mut self, before: &[String], name: &str) {
        let mut path = before.to_vec();
        path.push(name.to_owned());
        self.0.push(path);
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    let is_test = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().contains("test")
        }
        _ => false,
    };
    attributes.iter().any(is_test)
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_test(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.add(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

/// One folder: its files by module name; `mod` is `mod.rs`.
struct Folder {
    /// The name of the folder below `lockcore/src`, as in a path.
    module: String,
    files: BTreeMap<String, syn::File>,
    /// The files from which `mod.rs` re-exports names.
    homes: BTreeMap<String, String>,
}

impl Folder {
    fn read(folder: &Path) -> Self {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: BTreeMap<String, syn::File> = entries
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
            .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), parse(&path)))
            .collect();
        let mut homes = BTreeMap::new();
        for path in files.get("mod").map(Paths::of).unwrap_or_default() {
            if let [first, home, .., name] = path.as_slice()
                && first == "self"
            {
                homes.insert(name.clone(), home.clone());
            }
        }
        let module = folder.file_name().unwrap().to_string_lossy().into_owned();
        Self { module, files, homes }
    }

    /// The file of this folder that `path` leads to, if any. `top` has the re-exports of the crate.
    fn target(&self, path: &[String], top: &BTreeMap<String, String>) -> Option<String> {
        let [first, second, rest @ ..] = path else { return None };
        let name = match first.as_str() {
            "super" if second != "super" => second,
            "crate" if *second == self.module => rest.first()?,
            "crate" if top.get(second) == Some(&self.module) => second,
            _ => return None,
        };
        let home = self.homes.get(name).unwrap_or(name);
        match self.files.contains_key(home) {
            true => Some(home.clone()),
            // Items that `mod.rs` defines itself.
            false => self.files.contains_key("mod").then(|| "mod".to_owned()),
        }
    }

    /// The imports of each file from the others, where `mod.rs` only re-exports.
    fn imports(&self, top: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
        let mut imports = BTreeMap::new();
        for (name, file) in self.files.iter().filter(|(name, _)| *name != "mod") {
            let targets = Paths::of(file).into_iter().filter_map(|path| self.target(&path, top));
            imports.insert(name.clone(), targets.filter(|target| target != name).collect());
        }
        imports
    }
}

/// The groups of files that all import each other, directly or not, largest first.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reach = |from: &String| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(file) = next.pop() {
            for target in imports.get(&file).into_iter().flatten() {
                if reached.insert(target.clone()) {
                    next.push(target.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|file| (file, reach(file))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (file, targets) in &reached {
        let circle: BTreeSet<String> = targets
            .iter()
            .filter(|target| reached.get(target).is_some_and(|back| back.contains(*file)))
            .cloned()
            .collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// The names that `lib.rs` re-exports, with their folder.
fn top() -> BTreeMap<String, String> {
    let mut top = BTreeMap::new();
    for path in Paths::of(&parse(&root().join("lockcore/src/lib.rs"))) {
        if let [first, folder, .., name] = path.as_slice()
            && first == "crate"
        {
            top.insert(name.clone(), folder.clone());
        }
    }
    top
}

#[test]
fn no_more_than_three_files_of_a_folder_import_each_other() {
    let (mut folders, mut too_large, mut seen) = (Vec::new(), Vec::new(), 0);
    walk(&root().join("lockcore/src"), &mut folders, &mut Vec::new());
    let top = top();
    for folder in folders.iter().filter(|folder| !folder.ends_with("src")) {
        let imports = Folder::read(folder).imports(&top);
        seen += imports.values().map(BTreeSet::len).sum::<usize>();
        for circle in circles(&imports).into_iter().filter(|circle| circle.len() > LARGEST_CIRCLE) {
            too_large.push(format!("{}: {circle:?}", folder.display()));
        }
    }
    assert!(seen > 60, "only {seen} imports were seen");
    assert!(too_large.is_empty(), "these files form a circle:\n{}", too_large.join("\n"));
}

/// The types that a file defines, including those in tests, and whether each is visible to users.
fn types(file: &syn::File) -> BTreeSet<String> {
    #[derive(Default)]
    struct Types(BTreeSet<String>);
    impl<'a> Visit<'a> for Types {
        fn visit_item(&mut self, item: &'a Item) {
            let name = match item {
                Item::Struct(item) => Some(&item.ident),
                Item::Enum(item) => Some(&item.ident),
                Item::Trait(item) => Some(&item.ident),
                Item::Type(item) => Some(&item.ident),
                _ => None,
            };
            self.0.extend(name.map(ToString::to_string));
            syn::visit::visit_item(self, item);
        }
    }
    let mut types = Types::default();
    types.visit_file(file);
    types.0
}

#[test]
fn no_type_of_the_core_has_the_name_of_another_one() {
    let mut files = Vec::new();
    for part in CRATES {
        walk(&root().join(part), &mut Vec::new(), &mut files);
    }
    let mut homes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| !STAND_INS.iter().any(|name| file.ends_with(name))) {
        let path = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        for name in types(&parse(file)) {
            homes.entry(name).or_default().push(path.clone());
        }
    }
    let is_core = |path: &String| {
        ["client", "engine"].iter().any(|part| path.starts_with(&format!("lockcore/src/{part}/")))
    };
    let clashes: Vec<String> = homes
        .iter()
        .filter(|(_, homes)| homes.len() > 1 && homes.iter().any(is_core))
        .map(|(name, homes)| format!("`{name}` in {}", homes.join(", ")))
        .collect();
    assert!(homes.len() > 200, "only {} types were seen", homes.len());
    assert!(clashes.is_empty(), "one name for several types:\n{}", clashes.join("\n"));
}

#[test]
fn these_checks_can_fail() {
    let import = |from: &str, to: &[&str]| {
        (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect::<BTreeSet<_>>())
    };
    let imports = BTreeMap::from([
        import("a", &["b"]),
        import("b", &["c", "d"]),
        import("c", &["a"]),
        import("d", &[]),
    ]);
    let circles = circles(&imports);
    assert_eq!(circles.len(), 1);
    assert!(circles[0].iter().eq(["a", "b", "c"]));
    let file = syn::parse_str("use super::{x::Y, z};\n#[cfg(test)]\nmod tests { use super::*; }");
    assert_eq!(Paths::of(&file.unwrap()), [["super", "x", "Y"].as_slice(), &["super", "z"]]);
    assert!(types(&syn::parse_str("enum A {}\nfn f() { struct B; }").unwrap()).len() == 2);
}
