//! Extended attributes and ACLs.

use super::scene::Scene;
use crate::rules::{XATTR_NAME_MAX, XATTR_VALUE_MAX};
use crate::{Caller, Error, FileKind, Ino, Result, XattrMode, acl};

fn set(s: &Scene<'_>, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
    s.fs.setxattr(&s.root, ino, name, value, XattrMode::Either)
}

fn get(s: &Scene<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    s.fs.getxattr(&s.root, ino, name)
}

fn list(s: &Scene<'_>, caller: &Caller, ino: Ino) -> Vec<String> {
    let raw = s.fs.listxattr(caller, ino).unwrap();
    let mut names: Vec<String> = raw
        .split_inclusive(|&b| b == 0)
        .map(|name| {
            String::from_utf8(name.strip_suffix(b"\0").expect("a NUL ends each name").to_vec()).unwrap()
        })
        .collect();
    names.sort();
    names
}

pub(super) fn values_come_back(s: &Scene<'_>) {
    for ino in [s.file("f", b""), s.mkdir("d")] {
        set(s, ino, b"user.a", b"one").unwrap();
        set(s, ino, b"user.b", &[0, 255, 0]).unwrap();
        set(s, ino, b"user.empty", b"").unwrap();
        set(s, ino, b"user.a", b"longer than before").unwrap();
        assert_eq!(get(s, ino, b"user.a"), Ok(b"longer than before".to_vec()));
        assert_eq!(get(s, ino, b"user.b"), Ok(vec![0, 255, 0]));
        assert_eq!(get(s, ino, b"user.empty"), Ok(Vec::new()));
        assert_eq!(get(s, ino, b"user.A"), Err(Error::NoAttribute));
        assert_eq!(list(s, &s.user, ino), ["user.a", "user.b", "user.empty"]);
        s.fs.removexattr(&s.root, ino, b"user.b").unwrap();
        assert_eq!(s.fs.removexattr(&s.root, ino, b"user.b"), Err(Error::NoAttribute));
        assert_eq!(list(s, &s.user, ino), ["user.a", "user.empty"]);
    }
}

pub(super) fn create_and_replace(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    let put = |value: &[u8], mode| s.fs.setxattr(&s.root, ino, b"user.a", value, mode);
    assert_eq!(put(b"1", XattrMode::Replace), Err(Error::NoAttribute));
    assert_eq!(put(b"2", XattrMode::Create), Ok(()));
    assert_eq!(put(b"3", XattrMode::Create), Err(Error::Exists));
    assert_eq!(get(s, ino, b"user.a"), Ok(b"2".to_vec()));
    assert_eq!(put(b"4", XattrMode::Replace), Ok(()));
    assert_eq!(get(s, ino, b"user.a"), Ok(b"4".to_vec()));
}

pub(super) fn limits(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    let longest = [b"user.".as_slice(), &[b'n'; XATTR_NAME_MAX - 5]].concat();
    set(s, ino, &longest, b"x").unwrap();
    assert_eq!(get(s, ino, &longest), Ok(b"x".to_vec()));
    let too_long = [longest.as_slice(), b"n"].concat();
    assert_eq!(set(s, ino, &too_long, b"x"), Err(Error::Range));
    assert_eq!(get(s, ino, &too_long), Err(Error::Range));
    assert_eq!(set(s, ino, b"", b"x"), Err(Error::Range));
    assert_eq!(set(s, ino, b"user.a", &vec![1; XATTR_VALUE_MAX + 1]), Err(Error::TooBig));
    // A volume may have less room for the largest than Linux, but must say so.
    match set(s, ino, b"user.a", &[7; XATTR_VALUE_MAX]) {
        Ok(()) => assert!(get(s, ino, b"user.a") == Ok(vec![7; XATTR_VALUE_MAX])),
        Err(error) => {
            assert_eq!(error, Error::NoSpace);
            assert_eq!(get(s, ino, b"user.a"), Err(Error::NoAttribute));
        }
    }
}

pub(super) fn namespaces(s: &Scene<'_>) {
    let f = s.create_as(&s.user, "f", 0o644).attr.ino;
    let user_set = |ino, name: &[u8]| s.fs.setxattr(&s.user, ino, name, b"x", XattrMode::Either);
    set(s, f, b"trusted.t", b"x").unwrap();
    set(s, f, b"security.s", b"x").unwrap();
    user_set(f, b"user.u").unwrap();
    assert_eq!(user_set(f, b"trusted.x"), Err(Error::NotPermitted));
    assert_eq!(user_set(f, b"security.x"), Err(Error::NotPermitted));
    assert_eq!(s.fs.getxattr(&s.user, f, b"trusted.t"), Err(Error::NoAttribute));
    assert_eq!(s.fs.getxattr(&s.user, f, b"security.s"), Ok(b"x".to_vec()));
    assert_eq!(list(s, &s.user, f), ["security.s", "user.u"]);
    assert_eq!(list(s, &s.root, f), ["security.s", "trusted.t", "user.u"]);
    assert_eq!(set(s, f, b"nonsense.x", b"x"), Err(Error::NotSupported));
    assert_eq!(set(s, f, b"user.", b"x"), Err(Error::Invalid));
    assert_eq!(s.fs.setxattr(&s.other, f, b"user.x", b"x", XattrMode::Either), Err(Error::AccessDenied));
    let link = s.fs.symlink(&s.user, s.dir, b"l", b"x").unwrap().ino;
    let fifo = s.fs.mknod(&s.user, s.dir, b"p", FileKind::Fifo.mode_bits() | 0o666, 0).unwrap().ino;
    for ino in [link, fifo] {
        assert_eq!(user_set(ino, b"user.x"), Err(Error::NotPermitted));
        assert_eq!(s.fs.getxattr(&s.user, ino, b"user.x"), Err(Error::NoAttribute));
        set(s, ino, b"trusted.t", b"y").unwrap();
        assert_eq!(get(s, ino, b"trusted.t"), Ok(b"y".to_vec()));
    }
    s.chmod(s.dir, 0o1777);
    assert_eq!(user_set(s.dir, b"user.x"), Err(Error::NotPermitted), "sticky");
}

pub(super) fn files_keep_them(s: &Scene<'_>) {
    let ino = s.file("f", b"bytes");
    set(s, ino, b"user.a", b"kept").unwrap();
    s.link(ino, "g").unwrap();
    s.unlink("f").unwrap();
    s.rename("g", "h", crate::RenameFlags::empty()).unwrap();
    s.set(ino, crate::SetAttr { size: Some(100_000), mode: Some(0o600), ..Default::default() });
    assert_eq!(get(s, ino, b"user.a"), Ok(b"kept".to_vec()));
    s.unlink("h").unwrap();
    assert_eq!(list(s, &s.root, s.file("f", b"")), [""; 0], "the next file has none");
}

pub(super) fn many_on_one_file(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    let name = |number: usize| format!("user.attribute {number}");
    let mut made = 0..0;
    while made.end < 40 {
        match set(s, ino, name(made.end).as_bytes(), &vec![made.end as u8; made.end]) {
            // A volume with small blocks may have no room for all.
            Err(Error::NoSpace) if made.end >= 20 => break,
            set => set.unwrap(),
        }
        made.end += 1;
    }
    for number in made.clone().step_by(3) {
        s.fs.removexattr(&s.root, ino, name(number).as_bytes()).unwrap();
    }
    let kept: Vec<usize> = made.filter(|number| number % 3 != 0).collect();
    for number in &kept {
        assert_eq!(get(s, ino, name(*number).as_bytes()), Ok(vec![*number as u8; *number]));
    }
    assert_eq!(list(s, &s.root, ino).len(), kept.len());
}

/// An ACL: owner, named users, group, mask if there is one, other.
fn acl_of(owner: u16, users: &[(u32, u16)], group: u16, mask: Option<u16>, other: u16) -> Vec<u8> {
    let mut raw = vec![2, 0, 0, 0];
    let mut add = |tag: u16, perm: u16, id: u32| {
        raw.extend(tag.to_le_bytes());
        raw.extend(perm.to_le_bytes());
        raw.extend(id.to_le_bytes());
    };
    add(1, owner, u32::MAX);
    users.iter().for_each(|&(id, perm)| add(2, perm, id));
    add(4, group, u32::MAX);
    mask.into_iter().for_each(|perm| add(16, perm, u32::MAX));
    add(32, other, u32::MAX);
    raw
}

pub(super) fn an_access_acl_and_the_mode(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    set(s, ino, acl::ACCESS, &acl_of(7, &[], 5, None, 0)).unwrap();
    assert_eq!(s.attr(ino).perm(), 0o750);
    assert_eq!(get(s, ino, acl::ACCESS), Err(Error::NoAttribute), "the mode says it all");
    set(s, ino, acl::ACCESS, &acl_of(6, &[(1001, 7)], 4, Some(6), 0)).unwrap();
    assert_eq!(s.attr(ino).perm(), 0o660, "the mask stands for the group");
    assert_eq!(list(s, &s.user, ino), ["system.posix_acl_access"]);
    s.chmod(ino, 0o604);
    assert_eq!(get(s, ino, acl::ACCESS), Ok(acl_of(6, &[(1001, 7)], 4, Some(0), 4)));
    s.fs.removexattr(&s.root, ino, acl::ACCESS).unwrap();
    assert_eq!((get(s, ino, acl::ACCESS), s.attr(ino).perm()), (Err(Error::NoAttribute), 0o604));
    set(s, ino, acl::ACCESS, &acl_of(6, &[(1001, 7)], 4, Some(6), 0)).unwrap();
    set(s, ino, acl::ACCESS, b"").unwrap();
    assert_eq!(get(s, ino, acl::ACCESS), Err(Error::NoAttribute), "an empty value removes");
}

pub(super) fn an_access_acl_permits(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    set(s, ino, acl::ACCESS, &acl_of(6, &[(1001, 6), (1002, 0)], 0, Some(4), 4)).unwrap();
    let may = |caller: &Caller, mask| s.fs.access(caller, ino, mask).is_ok();
    assert!(may(&s.user, 4) && !may(&s.user, 2), "the mask limits");
    assert!(!may(&s.other, 4), "named and denied");
    assert!(may(&Caller::user(5, 5), 4), "others");
    let set_by =
        |caller| s.fs.setxattr(caller, ino, acl::ACCESS, &acl_of(7, &[], 7, None, 7), XattrMode::Either);
    assert_eq!(set_by(&s.user), Err(Error::NotPermitted), "only the owner sets it");
    s.chmod(ino, 0o664);
    assert!(may(&s.user, 6), "chmod of the group changes the mask");
}

pub(super) fn a_default_acl_is_inherited(s: &Scene<'_>) {
    let default = acl_of(7, &[(1001, 7)], 5, Some(7), 0);
    set(s, s.dir, acl::DEFAULT, &default).unwrap();
    assert_eq!(s.attr(s.dir).perm(), 0o777, "it does not concern the directory itself");
    let masked = Caller { umask: 0o777, ..s.root.clone() };
    let file = s.create_as(&masked, "f", 0o664).attr;
    assert_eq!(file.perm(), 0o660, "the umask does not apply");
    assert_eq!(get(s, file.ino, acl::ACCESS), Ok(acl_of(6, &[(1001, 7)], 5, Some(6), 0)));
    assert_eq!(get(s, file.ino, acl::DEFAULT), Err(Error::NoAttribute));
    let dir = s.fs.mkdir(&masked, s.dir, b"d", 0o755).unwrap();
    assert_eq!(dir.perm(), 0o750);
    assert_eq!(get(s, dir.ino, acl::DEFAULT), Ok(default.clone()));
    assert_eq!(get(s, dir.ino, acl::ACCESS), Ok(acl_of(7, &[(1001, 7)], 5, Some(5), 0)));
    let link = s.fs.symlink(&masked, s.dir, b"l", b"x").unwrap();
    assert_eq!((link.perm(), list(s, &s.root, link.ino).len()), (0o777, 0));
    assert_eq!(
        set(s, file.ino, acl::DEFAULT, &default),
        Err(Error::AccessDenied),
        "only directories have one"
    );
    set(s, s.dir, acl::DEFAULT, &acl_of(7, &[], 5, None, 0)).unwrap();
    let plain = s.create_as(&masked, "g", 0o666).attr;
    assert_eq!((plain.perm(), get(s, plain.ino, acl::ACCESS)), (0o640, Err(Error::NoAttribute)));
    s.fs.removexattr(&s.root, s.dir, acl::DEFAULT).unwrap();
    assert_eq!(s.create_as(&Caller { umask: 0o022, ..s.root.clone() }, "h", 0o666).attr.perm(), 0o644);
}

pub(super) fn malformed_acls_are_refused(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    let good = acl_of(6, &[(1001, 7)], 4, Some(6), 0);
    let mut version = good.clone();
    version[0] = 3;
    assert_eq!(set(s, ino, acl::ACCESS, &version), Err(Error::NotSupported));
    assert_eq!(set(s, ino, acl::ACCESS, &good[..good.len() - 8]), Err(Error::Invalid), "nothing for others");
    assert_eq!(set(s, ino, acl::ACCESS, &good[..good.len() - 1]), Err(Error::Invalid));
    assert_eq!(
        set(s, ino, acl::ACCESS, &acl_of(6, &[(1001, 7)], 4, None, 0)),
        Err(Error::Invalid),
        "no mask"
    );
    assert_eq!(set(s, ino, acl::ACCESS, &acl_of(9, &[], 4, None, 0)), Err(Error::Invalid));
    assert_eq!(s.attr(ino).perm(), 0o644);
    let link = s.fs.symlink(&s.root, s.dir, b"l", b"x").unwrap().ino;
    assert_eq!(set(s, link, acl::ACCESS, &good), Err(Error::NotSupported));
}
