//! Small cases, each by its name, of what every volume must do and chance seldom finds.
//!
//! Each case works in a directory of its own name below the root, so that one volume serves them all:
//!
//! ```
//! # use vfs::{conformance, model::Model};
//! let volume = Model::new();
//! for (name, case) in conformance::all() {
//!     eprintln!("{name}");
//!     case(&volume);
//! }
//! ```
//!
//! A case that fails panics.

mod data;
mod flags;
mod holes;
mod listing;
mod naming;
mod ownership;
mod renaming;
mod scene;
mod times;
mod unlinking;
mod xattrs;

use crate::FileSystem;

/// A case: panics if the file system does it wrong.
pub type Case = fn(&dyn FileSystem);

macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        const ALL: &[(&str, Case)] = &[
            $($((concat!(stringify!($module), "::", stringify!($case)), |fs| {
                $module::$case(&scene::Scene::new(fs, concat!(stringify!($module), "-", stringify!($case))))
            }),)*)*
        ];
    };
}

cases! {
    naming:
        names_are_any_bytes
        names_have_a_limit
        dots_lead_around
        links_hold_4095_bytes
        every_kind_is_made
        making_what_exists_fails
        create_opens_what_exists
        create_truncates
        links_are_counted
        links_beyond_65000
        links_are_denied
        directories_count_their_children
        directories_nest_deep
        files_are_not_directories;
    unlinking:
        an_open_file_outlives_its_name
        what_is_held_outlives_its_name_whatever_it_is
        a_gone_inode_is_stale
        one_name_of_two
        directories_are_not_unlinked
        only_empty_directories_go
        a_removed_directory_takes_nothing
        an_unnamed_file_is_private
        an_unnamed_file_gets_a_name
        an_unlinkable_file_gets_none;
    renaming:
        a_file_replaces_a_file
        an_open_target_lives_on
        onto_itself
        two_names_of_one_file
        noreplace_spares_the_target
        a_whiteout_stays_behind
        exchange_swaps_any_kinds
        a_directory_replaces_an_empty_one
        kinds_must_fit
        not_into_itself
        not_onto_an_ancestor
        a_directory_moves_with_its_parent
        missing_and_forbidden_names;
    listing:
        an_empty_directory_has_dots
        every_entry_is_shown_once
        a_refused_entry_comes_again
        kinds_are_shown
        cookies_survive_removals
        cookies_survive_additions
        removal_while_listing
        names_come_and_go;
    data:
        bytes_come_back
        reads_end_at_the_end
        unaligned_overwrites
        appends_go_to_the_end
        handles_share_the_file
        handles_do_what_they_were_opened_for
        cut_bytes_never_return
        slices_are_the_bytes
        files_have_a_limit
        directories_have_no_bytes
        copies_are_independent
        copies_end_with_the_source
        copies_within_a_file
        syncs_succeed;
    holes:
        a_gap_is_zeros
        far_offsets
        what_lies_behind_the_end_goes_with_a_cut_to_it
        data_and_holes_are_found
        seeks_end_at_the_end
        allocation_extends
        allocation_keeps_bytes
        punching_zeroes
        zeroing_zeroes
        bad_modes_and_ranges;
    ownership:
        new_files_are_the_callers
        the_umask_applies
        a_setgid_directory_gives_its_group
        mkdir_takes_no_set_ids
        a_sticky_directory_protects
        classes_are_tried_in_order
        directories_need_search_and_write
        an_open_file_needs_no_permission
        only_owners_change_attributes
        owners_choose_among_their_groups
        chown_clears_set_ids
        writing_clears_set_ids
        trusted_callers_are_not_checked
        devices_are_the_superusers;
    flags:
        letters_are_kept
        letters_are_handed_down
        letters_are_the_owners
        nobody_changes_what_is_immutable
        what_may_only_grow_grows
        an_open_handle_is_bound
        directories_keep_their_names;
    times:
        creation_sets_all
        bytes_set_mtime_and_ctime
        reading_sets_none
        truncation
        attributes_set_ctime
        names_set_the_directories
        renames_set_both_directories
        given_times_are_kept
        far_times_are_kept_or_clamped
        now_is_now
        a_cache_keeps_times
        failures_set_none;
    xattrs:
        values_come_back
        create_and_replace
        limits
        namespaces
        files_keep_them
        many_on_one_file
        an_access_acl_and_the_mode
        an_access_acl_permits
        a_default_acl_is_inherited
        malformed_acls_are_refused;
}

/// All cases, by name.
pub fn all() -> &'static [(&'static str, Case)] {
    ALL
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::broken::{Broken, Fault};
    use crate::model::Model;

    #[test]
    fn the_model_conforms() {
        let volume = Model::new();
        for (name, case) in all() {
            eprintln!("{name}");
            case(&volume);
            assert_eq!(volume.open_handles(), 0, "{name} closes what it opens");
        }
    }

    #[test]
    fn every_fault_breaks_a_case() {
        for fault in Fault::ALL {
            let volume = Broken::new(fault);
            let fails = |case: &Case| catch_unwind(AssertUnwindSafe(|| case(&volume))).is_err();
            assert!(all().iter().any(|(_, case)| fails(case)), "{fault:?} went unnoticed");
        }
    }
}
