"""Bundles that the compiler for TPUs schedules, counted in its dump."""

from experiments.bench.tpu_schedule import count_bundles, count_largest_region, read_schedules

SCHEDULE = """
LB: loop body
= control target key end

     0   :  { %s1 = smov 0 } /* Start region 1 */
   0xc LB: > { %s2 = sphi 0 }
   0xd   : > { %s3 = sadd.s32 1, %s2 }
   0xe LB: >> { %v1 = vld [vmem:[%s1] sm:$0xff] }
   0xf   : >> { %v2 = vadd.f32 %v1, %v1 }
  0x10   :  {}
  0x11 PF: > { %s4 = smov 0 }
  0x12 LB: >> { %v3 = vld [vmem:[%s1] sm:$0xff] }
  0x13 PF: > { %s5 = smov 0 }
  0x14   :  { %s6 = smov 0 }
"""


def test_bundles_of_the_innermost_loops_are_counted():
    assert count_bundles(SCHEDULE) == [3, 1]


def test_neighbouring_loops_are_counted_apart():
    assert count_bundles(" 0x1 LB: > { }\n 0x2   : > { }\n 0x3 LB: > { }") == [2, 1]


def test_code_that_a_branch_skips_is_not_counted():
    branch = "  0x1 LB: > { %5 = sbr.rel (%p1_p7) target = $region9 }\n"
    delay = "".join(f"  {i:#x}   : > {{ }}\n" for i in range(2, 6))
    skipped = "  0x6   : > { } /* Start region 8 */\n  0x7   : > { } /* End region 8 */\n"
    end = "  0x8 PF: > { } /* Start/End empty region 9 */\n  0x9   : > { }\n"
    assert count_bundles(branch + delay + skipped + end) == [7]


def test_a_short_loop_in_a_long_one_is_a_copy_and_counts_once():
    tile = " 0x2 LB: >> { }\n" + " 0x3   : >> { }\n" * 99
    copy = " 0x4 LB: >>> { }\n 0x5   : >>> { }\n"
    assert count_bundles(" 0x1 LB: > { }\n" + tile + copy) == [102]


def test_the_largest_region_without_regions_inside_is_counted():
    regions = ["Start region 1", "Start region 2", "", "End region 2", "Start region 3"]
    regions += ["End region 3", "", "", "End region 1"]
    lines = [f"  {i:#x}   : > {{ }} /* {text} */" for i, text in enumerate(regions, 1)]
    assert count_largest_region("\n".join(lines)) == 3


def test_only_the_schedules_of_kernels_are_read(tmp_path):
    for name in ("1-forward.1-72-final_bundles.txt", "2-fusion.3-66-final_bundles.txt"):
        (tmp_path / name).write_text(SCHEDULE)
    splash = "  0x1   : > { } /* Start region 1 */\n  0x2   : > { } /* End region 1 */"
    (tmp_path / "3-splash_mha_dq.1-01-final_bundles.txt").write_text(splash)
    (tmp_path / "1-forward.1-71-schedule-analysis_final_bundles.txt").write_text("747")
    assert read_schedules(tmp_path) == {"forward.1": [3, 1], "splash_mha_dq.1": [2]}
