"""Groups of fused work, loop trees and schedules as data."""
