//! The store of the disk cache, against everything a folder can do to it.

use kiln_runtime::disk::{Damage, ImportError, Key, Kind, Store};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// A folder of this test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kiln-store-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Folder(std::env::temp_dir().join(name))
    }

    fn store(&self, most_bytes: u64) -> Store {
        Store::open(&self.0, most_bytes).unwrap()
    }

    fn files(&self, kind: Kind) -> Vec<PathBuf> {
        let Ok(folder) = fs::read_dir(self.0.join(kind.folder())) else { return vec![] };
        folder.map(|file| file.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(n: usize) -> Key {
    Key::build().part("number", &n.to_string()).note("label", "test").finish()
}

#[test]
fn what_is_put_is_got_by_its_kind_and_key_alone() {
    let folder = Folder::new();
    let store = folder.store(1 << 20);
    assert_eq!(store.get(Kind::Tuning, &key(1)), None);
    store.put(Kind::Tuning, &key(1), b"one");
    assert_eq!(store.get(Kind::Tuning, &key(1)).as_deref(), Some(b"one".as_slice()));
    assert_eq!(store.get(Kind::Kernel, &key(1)), None);
    assert_eq!(store.get(Kind::Tuning, &key(2)), None);
    store.put(Kind::Tuning, &key(1), b"another");
    assert_eq!(folder.store(1 << 20).get(Kind::Tuning, &key(1)).as_deref(), Some(b"another".as_slice()));
    let list = store.list().unwrap();
    assert_eq!((list.len(), list[0].uses, list[0].about.get("label")), (1, 1, Some("test")));
    assert_eq!(store.read(&list[0]).unwrap().payload, b"another");
}

#[test]
fn a_damaged_file_is_a_miss_and_goes() {
    let folder = Folder::new();
    let store = folder.store(1 << 20);
    store.put(Kind::Program, &key(1), b"a small program");
    let file = folder.files(Kind::Program).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut broken: Vec<Vec<u8>> = (0..whole.len()).map(|n| whole[..n].to_vec()).collect();
    broken.push([whole.clone(), vec![0]].concat());
    broken.extend((0..whole.len()).filter(|at| !(96..104).contains(at)).map(|at| {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        flipped
    }));
    for bytes in broken {
        fs::write(&file, bytes).unwrap();
        assert_eq!(store.get(Kind::Program, &key(1)), None);
        assert!(!file.exists());
    }
    // An entry of another key under this name, and a folder where a file should be.
    store.put(Kind::Program, &key(2), b"another program");
    fs::rename(&folder.files(Kind::Program)[0], &file).unwrap();
    assert_eq!(store.get(Kind::Program, &key(1)), None);
    fs::create_dir(&file).unwrap();
    assert_eq!(store.get(Kind::Program, &key(1)), None);
    fs::remove_dir(&file).unwrap();
    store.put(Kind::Program, &key(1), b"a small program");
    assert_eq!(store.get(Kind::Program, &key(1)).as_deref(), Some(b"a small program".as_slice()));
}

#[test]
fn the_least_recently_used_goes() {
    let folder = Folder::new();
    let store = folder.store(40_000);
    let payload = vec![7; 4_000];
    let long_ago = SystemTime::now() - Duration::from_secs(1000);
    for n in 0..9 {
        store.put(Kind::Kernel, &key(n), &payload);
        let file = folder.0.join("kernels").join(key(n).hex());
        let at = long_ago + Duration::from_secs(n as u64);
        fs::File::options().write(true).open(file).unwrap().set_modified(at).unwrap();
    }
    // A use makes the oldest the newest.
    assert!(store.get(Kind::Kernel, &key(0)).is_some());
    store.put(Kind::Kernel, &key(9), &payload);
    let total = || folder.files(Kind::Kernel).iter().map(|f| f.metadata().unwrap().len()).sum::<u64>();
    assert!(total() <= 40_000, "{}", total());
    assert!(store.get(Kind::Kernel, &key(0)).is_some() && store.get(Kind::Kernel, &key(9)).is_some());
    assert!(store.get(Kind::Kernel, &key(1)).is_none());
    for n in 0..200 {
        store.put(Kind::Tuning, &key(n), &payload[..100 + n * 10]);
        let bytes: u64 = store.list().unwrap().iter().map(|l| l.bytes).sum();
        assert!(bytes <= 40_000 + 40_000 / 16 + 4_200, "{bytes}");
    }
    // What can never fit is not stored.
    store.put(Kind::Tuning, &key(1000), &[0; 50_000]);
    assert_eq!(store.get(Kind::Tuning, &key(1000)), None);
}

#[test]
fn entries_travel_and_are_checked_on_arrival() {
    let (here, there) = (Folder::new(), Folder::new());
    here.store(1 << 20).put(Kind::Kernel, &key(1), b"code");
    let mut bytes = fs::read(&here.files(Kind::Kernel)[0]).unwrap();
    let store = there.store(1 << 20);
    assert_eq!(store.import(&bytes).unwrap().payload, b"code");
    assert_eq!(store.get(Kind::Kernel, &key(1)).as_deref(), Some(b"code".as_slice()));
    *bytes.last_mut().unwrap() ^= 1;
    assert!(matches!(store.import(&bytes), Err(ImportError::Damaged(Damage::Digest))));
    assert_eq!(store.clear().unwrap().0, 1);
    assert_eq!(store.get(Kind::Kernel, &key(1)), None);
}

#[cfg(unix)]
#[test]
fn folders_are_private_and_public_ones_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    folder.store(1 << 20).put(Kind::Kernel, &key(1), b"code");
    for made in [folder.0.clone(), folder.0.join("kernels")] {
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{}", made.display());
    }
    fs::set_permissions(folder.0.join("kernels"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Store::open(&folder.0, 1 << 20).is_err());
}

#[cfg(unix)]
#[test]
fn links_and_pipes_are_not_followed() {
    let folder = Folder::new();
    let store = folder.store(1 << 20);
    store.put(Kind::Kernel, &key(1), b"code");
    let file = folder.files(Kind::Kernel).remove(0);
    let aside = folder.0.join("aside");
    fs::rename(&file, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &file).unwrap();
    assert_eq!(store.get(Kind::Kernel, &key(1)), None);
    let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: a valid path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    assert_eq!(store.get(Kind::Kernel, &key(1)), None);
    assert!(aside.exists() && !file.exists());
}

#[test]
fn many_threads_at_once_see_whole_entries_only() {
    let folder = Folder::new();
    let stores: Vec<Store> = (0..4).map(|_| folder.store(60_000)).collect();
    std::thread::scope(|scope| {
        for (thread, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..300 {
                    let n = (round * 7 + thread) % 20;
                    match store.get(Kind::Program, &key(n)) {
                        Some(payload) => assert!(payload == vec![n as u8; 1000 + n * 100]),
                        None => store.put(Kind::Program, &key(n), &vec![n as u8; 1000 + n * 100]),
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_dir(folder.0.join("unfinished")).unwrap().count(), 0);
}

#[test]
fn archives_carry_whole_entries_and_nothing_else() {
    let (here, there) = (Folder::new(), Folder::new());
    let store = here.store(1 << 20);
    (0..5).for_each(|n| store.put(Kind::ALL[n % 3], &key(n), &vec![n as u8; 100 * n]));
    let list = store.list().unwrap();
    let mut archive = Vec::new();
    assert_eq!(store.export(&list, &mut archive).unwrap().entries, 5);
    let target = there.store(1 << 20);
    for cut in [0, 7, 19, 20, 27, 28, 200, archive.len() - 1] {
        assert!(target.import_archive(&mut &archive[..cut]).is_err(), "{cut}");
    }
    let mut flipped = archive.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let imported = target.import_archive(&mut &flipped[..]).unwrap();
    assert_eq!((imported.entries, imported.refused), (4, vec![Damage::Digest]));
    target.clear().unwrap();
    assert_eq!(target.import_archive(&mut &archive[..]).unwrap().entries, 5);
    for n in 0..5 {
        assert_eq!(target.get(Kind::ALL[n % 3], &key(n)), Some(vec![n as u8; 100 * n]));
    }
    // A damaged entry is not shipped.
    fs::write(&list[0].file, b"nonsense").unwrap();
    let exported = store.export(&list, &mut Vec::new()).unwrap();
    assert_eq!((exported.entries, exported.left_out), (4, vec![Damage::Foreign]));
}

/// Guards against a first write of a process that takes as long as there are files: the size is in the ledger.
#[test]
fn a_folder_of_many_files_is_not_measured_by_each_process() {
    let folder = Folder::new();
    let first = folder.store(1 << 30);
    for n in 0..300 {
        first.put(Kind::Kernel, &key(n), &[1; 40]);
    }
    let size = |store: &Store| store.list().unwrap().iter().map(|l| l.bytes).sum::<u64>();
    let ledger = folder.0.join("size");
    let noted = || {
        let words = fs::read(&ledger).unwrap();
        words[8..].chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).sum::<u64>()
    };
    assert_eq!(noted(), size(&first));
    // Files that vanish behind the store's back are not missed until it measures again, which a new store does not.
    for file in folder.files(Kind::Kernel).iter().take(100) {
        fs::remove_file(file).unwrap();
    }
    let second = folder.store(1 << 30);
    second.put(Kind::Kernel, &key(1000), &[1; 40]);
    assert!(noted() > size(&second), "it was measured");
    // One that is damaged is made again.
    for damage in [&b"kilnsize too short"[..], b"", b"another file of more than twenty-four bytes"] {
        fs::write(&ledger, damage).unwrap();
        second.put(Kind::Kernel, &key(1001), &[1; 40]);
        assert_eq!(noted(), size(&second));
    }
    second.clear().unwrap();
    assert!(!ledger.exists());
}

/// Guards the bound where no single process writes much: what all of them wrote counts.
#[test]
fn many_processes_together_keep_the_bound() {
    let folder = Folder::new();
    let payload = vec![7; 1_000];
    for n in 0..200 {
        // As a process that writes one entry and ends.
        folder.store(40_000).put(Kind::Tuning, &key(n), &payload);
        let total = folder.files(Kind::Tuning).iter().map(|f| f.metadata().unwrap().len()).sum::<u64>();
        assert!(total <= 40_000 + 1_300, "{total} after {n}");
    }
    // A smaller bound holds from the first write.
    folder.store(10_000).put(Kind::Tuning, &key(500), &payload);
    let total = folder.files(Kind::Tuning).iter().map(|f| f.metadata().unwrap().len()).sum::<u64>();
    assert!(total <= 10_000, "{total}");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (folder, payload) = (&folder, &payload);
            scope.spawn(move || {
                for n in 0..100 {
                    folder.store(40_000).put(Kind::Tuning, &key(1000 + thread * 100 + n), payload);
                }
            });
        }
    });
    let total = folder.files(Kind::Tuning).iter().map(|f| f.metadata().unwrap().len()).sum::<u64>();
    assert!(total <= 40_000 + 40_000 / 16 + 5 * 1_300, "{total}");
}
